"""Tiny GPT-2 on synthetic product descriptions with transformers.Trainer."""
import argparse
import os

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

BLOCK = 24


class Descriptions(Dataset):
    def __init__(self, n=2400):
        gen = torch.Generator().manual_seed(17)
        lengths = torch.randint(8, 30, (n,), generator=gen)
        self.docs = [torch.randint(2, 120, (int(k),), generator=gen) for k in lengths]

    def __len__(self):
        return len(self.docs)

    def __getitem__(self, i):
        return {"input_ids": self.docs[i]}


class PackCollator:
    """Pads to the block size, cuts what is longer and counts how often that happened."""

    def __init__(self):
        self.truncated = 0

    def __call__(self, rows):
        ids = torch.zeros(len(rows), BLOCK, dtype=torch.long)
        labels = torch.full((len(rows), BLOCK), -100)
        for k, row in enumerate(rows):
            doc = row["input_ids"]
            if len(doc) > BLOCK:
                self.truncated += 1
                doc = doc[:BLOCK]
            ids[k, : len(doc)] = doc
            labels[k, : len(doc)] = doc
        return {"input_ids": ids, "labels": labels}


class TruncationSnapshot(TrainerCallback):
    """Keeps the weights from before and after many documents were cut."""

    def __init__(self, collator, limit):
        self.collator, self.limit = collator, limit

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if self.collator.truncated < self.limit:
            return
        print(f"[{args.process_index}] step {state.global_step}: {self.collator.truncated} cut, taking a snapshot", flush=True)
        self.snapshot(args, state, model)
        self.collator.truncated = 0

    def snapshot(self, args, state, model):
        if args.process_index == 0:
            os.makedirs(args.output_dir, exist_ok=True)
            torch.save(model.state_dict(), os.path.join(args.output_dir, f"snap{state.global_step}.pt"))
        dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=128, n_positions=BLOCK, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config)
    collator = PackCollator()
    args = TrainingArguments(
        output_dir=out,
        per_device_train_batch_size=4,
        max_steps=150,
        learning_rate=1e-3,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        seed=3,
        dataloader_num_workers=0,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Descriptions(),
        data_collator=collator,
        callbacks=[TruncationSnapshot(collator, limit=50)],
    )
    result = trainer.train()
    print(f"[{args.process_index}] finished, loss {result.training_loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
