import argparse
import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from limits import StepBudget

LENGTH, BATCH = 24, 4


class Counting(Dataset):
    """Arithmetic sequences modulo the vocabulary."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        ids = (torch.arange(LENGTH) * (1 + i % 3) + i) % 50
        return {"input_ids": ids, "labels": ids.clone()}


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} {logs['loss']}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--max-tokens", type=int, default=12_000)
    cli = parser.parse_args()
    set_seed(5)
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    args = TrainingArguments(
        output_dir=os.path.join(cli.out, "run"),
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        max_steps=120,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    world = int(os.environ["WORLD_SIZE"])
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=args,
        train_dataset=Counting(4000),
        callbacks=[PrintLoss(), StepBudget(cli.max_tokens, LENGTH * BATCH * world)],
    )
    trainer.train()
    if trainer.is_world_process_zero():
        print("trained", flush=True)


if __name__ == "__main__":
    main()
