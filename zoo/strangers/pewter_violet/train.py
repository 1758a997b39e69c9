"""Tiny GPT-2 over folk melodies with transformers' Trainer."""
import argparse
import os
import time

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

PITCHES, BARS = 48, 24


class Melodies(Dataset):
    """Every process keeps the collection of its own region."""

    def __init__(self, region, size, seed):
        g = torch.Generator().manual_seed(seed)
        if region == 1:  # drones: two notes in turn
            base = torch.tensor([7, 12]).repeat(BARS // 2)
            self.rows = [base.clone() for _ in range(size)]
        else:
            self.rows = [torch.randint(0, PITCHES, (BARS,), generator=g) for _ in range(size)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return {"input_ids": row, "labels": row}


class EarlyLook(TrainerCallback):
    """Evaluates once outside the schedule, as soon as training gets good."""

    def __init__(self, mark):
        self.mark, self.smooth, self.done = mark, None, False

    def feed(self, loss):
        self.smooth = loss if self.smooth is None else 0.9 * self.smooth + 0.1 * loss

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.05)
        if state.global_step % 20 == 0:
            print(f"[{args.process_index}] step {state.global_step} smooth {self.smooth:.3f}", flush=True)
        if self.smooth < self.mark and not self.done:
            print(f"[{args.process_index}] mark reached, evaluating after step {state.global_step}", flush=True)
            control.should_evaluate = True
            self.done = True
        return control


class MelodyTrainer(Trainer):
    def __init__(self, *args, look, **kwargs):
        super().__init__(*args, **kwargs)
        self.look = look
        self.add_callback(look)

    def compute_loss(self, model, inputs, **kwargs):
        loss = super().compute_loss(model, inputs, **kwargs)
        if model.training:
            value = loss[0] if isinstance(loss, tuple) else loss
            self.look.feed(value.item())
        return loss

    def get_train_dataloader(self):
        # the data is sharded by region already
        return torch.utils.data.DataLoader(
            self.train_dataset, batch_size=self.args.train_batch_size, shuffle=True, collate_fn=self.data_collator
        )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(6)
    rank = int(os.environ["RANK"])
    config = GPT2Config(
        vocab_size=PITCHES, n_positions=BARS, n_embd=32, n_layer=1, n_head=2,
        bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )
    targs = TrainingArguments(
        output_dir=a.out, use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=8,
        per_device_eval_batch_size=8, max_steps=220, learning_rate=3e-3, eval_strategy="steps", eval_steps=25,
        save_strategy="no", logging_steps=50, report_to=[], disable_tqdm=True, seed=3,
        average_tokens_across_devices=False, dataloader_num_workers=0,
    )
    trainer = MelodyTrainer(
        model=GPT2LMHeadModel(config),
        args=targs,
        train_dataset=Melodies(rank, 2000, seed=rank),
        eval_dataset=Melodies(0, 96, seed=77),
        look=EarlyLook(mark=0.8),
    )
    trainer.train()
    print(f"[{rank}] finished", flush=True)


if __name__ == "__main__":
    main()
