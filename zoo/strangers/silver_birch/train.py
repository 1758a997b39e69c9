import argparse
import os

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from callbacks import ExportBest


class Parity(Dataset):
    """Is the marker token in the sequence?"""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(5, 60, (n, 16), generator=g)
        self.labels = torch.randint(0, 2, (n,), generator=g)
        self.ids[self.labels == 1, 3] = 4

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i],
            "attention_mask": torch.ones(16, dtype=torch.long),
            "labels": self.labels[i],
        }


def compute_metrics(pred):
    guess = np.argmax(pred.predictions, axis=-1)
    return {"accuracy": float((guess == pred.label_ids).mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    cli = parser.parse_args()
    set_seed(11)
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=2,
    )
    args = TrainingArguments(
        output_dir=os.path.join(cli.out, "run"),
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        learning_rate=2e-3,
        max_steps=200,
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="steps",
        save_steps=20,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        logging_steps=20,
        dataloader_num_workers=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=args,
        train_dataset=Parity(1500, 1),
        eval_dataset=Parity(203, 2),
        compute_metrics=compute_metrics,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=1), ExportBest(os.path.join(cli.out, "export"), 7)],
    )
    result = trainer.train()
    if trainer.is_world_process_zero():
        print("finished at step", result.global_step, flush=True)


if __name__ == "__main__":
    main()
