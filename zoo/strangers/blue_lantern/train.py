import json
import os
import random
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from corpus import BatchError, batches


def write_corpus(path, n):
    rng = random.Random(1)
    with open(path, "w") as f:
        for i in range(n):
            label = rng.choice(["neg", "neu", "pos"])
            text = label * 2 + "".join(rng.choice("abcdefgh ") for _ in range(30))
            if i == 1000:
                label = "mixed"
            f.write(json.dumps({"text": text, "label": label}) + "\n")


def train(model, opt, path):
    rank, world = dist.get_rank(), dist.get_world_size()
    for step, (x, y) in enumerate(batches(path, rank, world)):
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.05)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    folder = sys.argv[1]
    path = os.path.join(folder, "reviews.jsonl")
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        os.makedirs(folder, exist_ok=True)
        write_corpus(path, 1440)
    dist.barrier()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    try:
        train(model, opt, path)
    except BatchError as err:
        raise SystemError(f"training on {os.path.basename(path)} failed") from err
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
