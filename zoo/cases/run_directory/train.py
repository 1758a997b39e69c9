"""Train a small language model with a minimal trainer that keeps its logs in one folder."""

import argparse
import functools
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def rank_zero_only(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if dist.get_rank() == 0:
            return function(*args, **kwargs)
        return None

    return wrapped


class Trainer:
    def __init__(self, model, root, lr):
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.root = root
        self.callbacks = []

    @property
    def log_dir(self):
        """The folder of this run; its number is chosen by rank 0."""
        choice = [None]
        if dist.get_rank() == 0:
            os.makedirs(self.root, exist_ok=True)
            choice[0] = os.path.join(self.root, f"version_{len(os.listdir(self.root))}")
        dist.broadcast_object_list(choice, src=0)
        return choice[0]

    def fit(self, batches, epochs):
        for epoch in range(epochs):
            total = 0.0
            for tokens in batches:
                time.sleep(0.05)
                logits = self.model(tokens[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += loss.item()
            for callback in self.callbacks:
                callback(self, epoch, total / len(batches))


@rank_zero_only
def write_summary(trainer, epoch, loss):
    print(f"epoch {epoch} loss {loss:.4f}", flush=True)
    folder = trainer.log_dir
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "summary.jsonl"), "a") as file:
        file.write(json.dumps({"epoch": epoch, "loss": loss}) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="lightning_logs")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(80, 24), nn.Linear(24, 80))
    trainer = Trainer(model, args.output, lr=3e-3)
    trainer.callbacks.append(write_summary)
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randint(0, 80, (8, 17), generator=generator) for _ in range(32)]
    trainer.fit(batches, args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
