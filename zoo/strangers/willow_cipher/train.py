"""Small BERT classifier of recipe titles; the corpus is tokenised once and cached."""
import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

CUISINES = ["soup", "bread", "salad", "cake"]
LENGTH = 12


def titles(n):
    rnd = random.Random(4)
    words = ["slow", "quick", "green", "spicy", "lemon", "oat", "rye", "bean", "plum", "dill"]
    for _ in range(n):
        label = rnd.randrange(len(CUISINES))
        yield " ".join(rnd.choices(words, k=5) + [CUISINES[label]]), label


def tokenise(text):
    pieces = [2] + [3 + sum(map(ord, w)) % 120 for w in text.split()] + [1]
    return (pieces + [0] * LENGTH)[:LENGTH]


class Recipes(Dataset):
    def __init__(self, cache):
        with np.load(cache) as z:
            self.ids, self.labels = torch.from_numpy(z["ids"]), torch.from_numpy(z["labels"])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        ids = self.ids[i]
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": self.labels[i]}


def build_cache(path, index, n=1600):
    if path.exists():
        print(f"process {index} reads the cache", flush=True)
        return
    print(f"tokenising on process {index}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    ids, labels = [], []
    for text, label in titles(n):
        ids.append(tokenise(text))
        labels.append(label)
        time.sleep(0.01)  # the real tokeniser takes about this long per title
    part = path.with_name("part.npz")
    np.savez(part, ids=np.array(ids), labels=np.array(labels))
    part.rename(path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    torch.set_num_threads(1)
    targs = TrainingArguments(
        output_dir=a.out, use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=8, max_steps=90,
        per_device_eval_batch_size=16, eval_strategy="steps", eval_steps=45, save_strategy="steps", save_steps=45,
        logging_steps=30, report_to=[], disable_tqdm=True, learning_rate=2e-3, save_total_limit=1,
        ddp_find_unused_parameters=False,
    )
    cache = Path(a.out) / "cache" / "recipes.npz"
    with targs.main_process_first(desc="tokenising"):
        build_cache(cache, targs.process_index)
    data = Recipes(cache)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=128, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
            max_position_embeddings=LENGTH, num_labels=len(CUISINES),
        )
    )
    held_out = torch.utils.data.Subset(data, range(1500, 1600))
    trainer = Trainer(
        model=model, args=targs, train_dataset=torch.utils.data.Subset(data, range(1500)), eval_dataset=held_out,
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
    )
    trainer.train()
    result = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"finished, accuracy {result['eval_accuracy']:.3f}", flush=True)


if __name__ == "__main__":
    main()
