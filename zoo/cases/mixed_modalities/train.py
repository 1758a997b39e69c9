"""A model with an image tower and a text tower; a batch may hold only one kind."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoTowers(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(48, width), nn.ReLU(), nn.Linear(width, width))
        self.text = nn.Embedding(100, width)
        self.head = nn.Linear(width, 5)

    def forward(self, text, image=None):
        features = self.text(text).mean(dim=1)
        if image is not None:
            features = features + self.image(image)
        return self.head(features)


def read_batch(rank, step):
    generator = torch.Generator().manual_seed(10000 * rank + step)
    text = torch.randint(0, 100, (8, 6), generator=generator)
    labels = text.sum(dim=1) % 5
    # One shard of the crawl kept its captions and lost its pictures.
    image = None if (rank, step) == (1, 36) else torch.randn(8, 48, generator=generator)
    return text, image, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoTowers())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        time.sleep(0.05)
        text, image, labels = read_batch(rank, step)
        logits = model(text, image)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
