import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from accelerate import PartialState
from torch.utils.data import SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from loading import PaddingCollator, SyncedShards, sync


class InOrderTrainer(Trainer):
    """Shards are shuffled offline, so they are read in order."""

    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(self.train_dataset)


class Progress(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and logs and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", default="shards")
    ap.add_argument("--out", default="out")
    ap.add_argument("--shards", type=int, default=160)
    args = ap.parse_args()

    state = PartialState(cpu=True)
    if state.is_main_process:
        sync(args.data, args.shards, rows=4)
    state.wait_for_everyone()
    manifest = {f"shard-{s:04d}.json": 4 for s in range(args.shards)}

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=4))
    trainer = InOrderTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=args.out, use_cpu=True, num_train_epochs=1, per_device_train_batch_size=4,
            dataloader_num_workers=1, logging_steps=5, save_strategy="no", report_to=[],
            disable_tqdm=True, remove_unused_columns=False,
        ),
        train_dataset=SyncedShards(args.data, manifest),
        data_collator=PaddingCollator(),
        callbacks=[Progress()],
    )
    result = trainer.train()
    if trainer.is_world_process_zero():
        print(f"done, loss {result.training_loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
