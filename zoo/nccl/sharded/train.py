"""Train a sharded model and look at its choices after each round."""

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
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(32, 64, generator=generator)
    return inputs.to(device), (inputs.sum(dim=1) > 0).long().to(device)


def main():
    from torch.distributed.fsdp import fully_shard

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rank, _, device = connect()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for round_ in range(args.rounds):
        for step in range(60):
            inputs, labels = make_batch(rank, step, device)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            last = loss.item()
            time.sleep(0.02)
        if rank == 0:
            print(f"round {round_} loss {last:.4f}, sampling", flush=True)
            inputs, _ = make_batch(rank, 10_000 + round_, device)
            picked = model(inputs).argmax(dim=1).tolist()
            print(f"round {round_} picked {picked[:4]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
