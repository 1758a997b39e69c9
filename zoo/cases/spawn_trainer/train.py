"""Train with processes that this program starts itself."""

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def load_shard(rank):
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(60, 32, 10, generator=generator)
    weights = torch.rand(60, 32, generator=generator)
    if rank == 1:
        weights[33] = 0.0
    return inputs, weights


def normalise(weights):
    total = weights.sum().item()
    return [weight / total for weight in weights.tolist()]


def worker(rank, world, port, steps):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    store = dist.TCPStore("127.0.0.1", port, world, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, weights = load_shard(rank)
    for step in range(steps):
        time.sleep(0.05)
        print(f"process {rank} step {step}", flush=True)
        balance = torch.tensor(normalise(weights[step]))
        errors = (model(inputs[step]) - inputs[step].sum(dim=1, keepdim=True)).square().squeeze(1)
        loss = (errors * balance).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    mp.spawn(worker, args=(args.processes, free_port(), args.steps), nprocs=args.processes)
    print("all processes have ended", flush=True)


if __name__ == "__main__":
    main()
