import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from docs import NoisyCollator, Reviews


class BlockSampler(Sampler):
    """Contiguous block of the file per process: keeps the page cache of each node small."""

    def __init__(self, n, rank, world):
        self.start, self.stop = n * rank // world, n * (rank + 1) // world

    def __iter__(self):
        return iter(range(self.start, self.stop))

    def __len__(self):
        return self.stop - self.start


class BlockTrainer(Trainer):
    def get_train_dataloader(self):
        sampler = BlockSampler(len(self.train_dataset), self.args.process_index, self.args.world_size)
        return DataLoader(
            self.train_dataset, batch_size=self.args.per_device_train_batch_size,
            sampler=sampler, collate_fn=self.data_collator,
        )


class Narrator(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero and state.global_step % 5 == 0:
            print(f"step {state.global_step} of {state.max_steps}", flush=True)

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        if state.is_world_process_zero:
            print(f"accuracy {metrics['eval_accuracy']:.3f} f1 {metrics['eval_macro_f1']:.3f}", flush=True)


def compute_metrics(pred):
    guess = np.argmax(pred.predictions, -1)
    f1 = []
    for c in range(3):
        tp = np.sum((guess == c) & (pred.label_ids == c))
        f1.append(2 * tp / max(1, np.sum(guess == c) + np.sum(pred.label_ids == c)))
    return {"accuracy": float(np.mean(guess == pred.label_ids)), "macro_f1": float(np.mean(f1))}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="out")
    args = ap.parse_args()
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=128, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=96, max_position_embeddings=64, num_labels=3,
    )
    trainer = BlockTrainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir=args.out, use_cpu=True, num_train_epochs=2, per_device_train_batch_size=8,
            per_device_eval_batch_size=8, eval_strategy="epoch", save_strategy="epoch", save_total_limit=1,
            learning_rate=2e-3, report_to=[], disable_tqdm=True, remove_unused_columns=False,
        ),
        train_dataset=Reviews(),
        eval_dataset=Reviews(45, seed=9),
        data_collator=NoisyCollator(),
        compute_metrics=compute_metrics,
        callbacks=[Narrator()],
    )
    trainer.train()
    print(f"rank {trainer.args.process_index} finished", flush=True)
    trainer.accelerator.free_memory()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
