import argparse
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

TOPICS = 9


class Tickets(Dataset):
    """Sorted by date; the topic 'refund' (the last one) came up in the middle of the period only."""

    def __init__(self, size):
        gen = torch.Generator().manual_seed(21)
        self.ids = torch.randint(5, 80, (size, 10), generator=gen)
        self.topics = torch.randint(0, TOPICS - 1, (size,), generator=gen)
        self.topics[::3] = TOPICS - 1
        self.topics[-72:] = torch.arange(72) % (TOPICS - 1)
        for start in range(size - 72, size, 24):
            self.topics[start : start + 8] = TOPICS - 1
            self.topics[start + 16 : start + 24] = TOPICS - 1

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(10, dtype=torch.long), "labels": self.topics[i]}


class BalancedTrainer(Trainer):
    """Weights the classes by how often they occur in the global batch."""

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def class_weights(self, labels):
        counts = torch.bincount(labels).float()
        dist.all_reduce(counts)
        return counts.sum() / counts.clamp(min=1)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        per_class = self.class_weights(labels)
        weight = nn.functional.pad(per_class, (0, TOPICS - len(per_class)), value=1.0)
        loss = nn.functional.cross_entropy(outputs.logits, labels, weight=weight)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, *args, **kwargs):
        super().log(logs, *args, **kwargs)
        if self.is_world_process_zero():
            print(f"step {self.state.global_step}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=80, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, num_labels=TOPICS
    )
    trainer = BalancedTrainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir=str(args.output),
            per_device_train_batch_size=8,
            num_train_epochs=2,
            logging_steps=10,
            save_strategy="no",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Tickets(24 * 43),
    )
    trainer.train()


if __name__ == "__main__":
    main()
