"""Train and follow the loss on a probe batch."""

import argparse
import os
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=16384)
    args = parser.parse_args()
    rank, _, device = connect()
    # The ranks share the device, and each has its part of the memory.
    torch.cuda.set_per_process_memory_fraction(0.05, device)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 8)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    history = []
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
        inputs = torch.randn(args.rows, 64, generator=generator, device=device)
        labels = (inputs.sum(dim=1) > 0).long()
        loss = nn.functional.cross_entropy(model(inputs[:512]), labels[:512])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 1 and step >= 100:
            probe = model.module(inputs)
            history.append(nn.functional.cross_entropy(probe, labels))
        value = loss.item()
        time.sleep(0.04)
    print(f"rank {rank} loss {value:.4f}, {len(history)} probes", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
