"""Spread a learning rate from one rank before each round."""

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


def build(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)
    return DistributedDataParallel(model)


def make_batch(rank, step, device):
    generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
    inputs = torch.randn(32, 64, generator=generator, device=device)
    return inputs, (inputs.sum(dim=1) > 0).long()


def publish(round_, device):
    rate = torch.tensor([0.05 * 0.9**round_], device=device)
    dist.broadcast(rate, src=0)
    return rate.item()


def subscribe(device):
    rate = torch.zeros(1, device=device)
    dist.broadcast(rate, src=0)
    return rate.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    rank, _, device = connect()
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for round_ in range(args.rounds):
        rate = publish(round_, device) if rank == 0 else subscribe(device)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for step in range(20):
            inputs, labels = make_batch(rank, 20 * round_ + step, device)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.02)
        value = loss.item()
        if rank == 0:
            print(f"round {round_} rate {rate:.4f} loss {value:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
