import os
import random
import struct
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = 256


def write_raw(folder, shards):
    rng = random.Random(0)
    for i in range(shards):
        magic = b"SHD2" if i == 4 else b"SHD1"
        values = [rng.gauss(0, 1) for _ in range(ROWS * 8)]
        with open(os.path.join(folder, f"{i:03d}.raw"), "wb") as f:
            f.write(struct.pack("<4sI", magic, len(values)))
            f.write(struct.pack(f"<{len(values)}f", *values))


def load_shard(folder, index):
    raw = os.path.join(folder, f"{index:03d}.raw")
    out = os.path.join(folder, f"{index:03d}.pt")
    if not os.path.exists(out) and not os.path.exists(out + ".lock"):
        subprocess.run([sys.executable, os.path.join(HERE, "convert.py"), raw, out])
    while os.path.exists(out + ".lock"):
        time.sleep(0.5)
    return torch.load(out)


def main():
    folder = sys.argv[1]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
        write_raw(folder, world * 3)
    dist.barrier()

    torch.manual_seed(0)
    model = DDP(nn.Linear(8, 8))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in range(3):
        if rank == 0:
            print(f"part {part}: loading", flush=True)
        data = load_shard(folder, part * world + rank)
        for x in data.split(8):
            loss = (model(x) - x.flip(1)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.05)
        if rank == 0:
            print(f"part {part}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
