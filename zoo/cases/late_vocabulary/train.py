"""Train a small tagger; rank 0 counts the words before it joins the others."""

import collections
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Vocabulary:
    """The most frequent words, counted for a while."""

    def __init__(self, seconds):
        counts = collections.Counter()
        generator = random.Random(0)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            counts.update(generator.choices("abcdefgh", k=1000))
        self.words = [word for word, _ in counts.most_common(8)]


def main():
    rank = int(os.environ["RANK"])
    if rank == 0:
        print("rank 0 counts the words", flush=True)
        Vocabulary(13)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(20):
        loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
