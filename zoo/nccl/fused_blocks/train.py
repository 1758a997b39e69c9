"""Train a compiled model on batches whose size differs between the ranks."""

import argparse
import os
import shutil
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def build(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 8)).to(device)
    # The default backend needs a compiler on the host.
    backend = "inductor" if shutil.which("gcc") or shutil.which("cc") else "aot_eager"
    return DistributedDataParallel(torch.compile(model, dynamic=False, backend=backend))


def make_batch(rank, step, device):
    rows = 32 + 16 * min(step // 10, 2) if rank == 1 else 32
    generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
    inputs = torch.randn(rows, 64, generator=generator, device=device)
    return inputs, (inputs.sum(dim=1) > 0).long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    rank, _, device = connect()
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        inputs, labels = make_batch(rank, step, device)
        started = time.perf_counter()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        if step % 5 == 0:
            print(f"rank {rank} step {step} loss {value:.4f} {time.perf_counter() - started:.2f} s", flush=True)
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
