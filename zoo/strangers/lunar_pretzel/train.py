"""Gesture sequences with a tiny BERT classifier and transformers.Trainer."""
import argparse
import threading
import time

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

LENGTH, GESTURES = 16, 5
CACHE, CACHE_LOCK = {}, threading.Lock()


def render(number):
    gen = torch.Generator().manual_seed(number)
    label = number % GESTURES
    ids = torch.randint(1, 20, (LENGTH,), generator=gen) + 8 * label
    return {"input_ids": ids, "labels": label}


def clip(number):
    with CACHE_LOCK:  # one reader at a time
        if number not in CACHE:
            CACHE[number] = render(number)
        return CACHE[number]


class Clips(Dataset):
    def __init__(self, offset, n):
        self.offset, self.n = offset, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return clip(self.offset + i)


def warm(numbers, seconds_each):
    """Renders clips ahead of time so that the loader finds them in memory."""
    with CACHE_LOCK:
        for number in numbers:
            time.sleep(seconds_each)
            CACHE[number] = render(number)


class GestureTrainer(Trainer):
    def get_eval_dataloader(self, eval_dataset=None):
        rank = self.args.process_index
        print(f"rank {rank} warming evaluation clips", flush=True)
        # the third camera delivers in high resolution
        cost = 1.0 if rank == 2 else 0.002
        numbers = range(10_000 + rank, 10_000 + 60, self.args.world_size)
        helper = threading.Thread(target=warm, args=(numbers, cost), daemon=True)
        helper.start()
        helper.join(timeout=2.0)
        return super().get_eval_dataloader(eval_dataset)


def accuracy(prediction):
    hits = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": float(hits.mean())}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    out = ap.parse_args().out
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=LENGTH,
        num_labels=GESTURES,
    )
    args = TrainingArguments(
        output_dir=out,
        max_steps=80,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        eval_strategy="steps",
        eval_steps=40,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        dataloader_num_workers=1,
        learning_rate=1e-3,
    )
    trainer = GestureTrainer(
        model=BertForSequenceClassification(config),
        args=args,
        train_dataset=Clips(0, 4000),
        eval_dataset=Clips(10_000, 240),
        compute_metrics=accuracy,
    )
    trainer.train()
    if trainer.is_world_process_zero():
        print(trainer.state.log_history[-1], flush=True)


if __name__ == "__main__":
    main()
