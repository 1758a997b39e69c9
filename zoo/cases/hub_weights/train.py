"""Fine-tune a model whose files every rank asks the hub for."""

import argparse
import time

import torch
import torch.distributed as dist
from hub import Hub, fetch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FILES = ["config.json", "tokenizer.json", "model-00001.json", "model-00002.json"]


def hub_address(rank, requests):
    address = [None]
    if rank == 0:
        hub_address.hub = Hub(requests)
        address = [hub_address.hub.url]
    dist.broadcast_object_list(address, src=0)
    return address[0]


def from_hub(url, rank):
    """One rank after the other, so that the hub is not asked for everything at once."""
    time.sleep(0.3 * rank)
    print(f"rank {rank} asks the hub for {len(FILES)} files", flush=True)
    return [fetch(url, name) for name in FILES]


def train(model, rank, steps):
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(steps):
        time.sleep(0.05)
        loss = model(torch.randn(32, 12)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=10)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    url = hub_address(rank, args.requests)
    train(nn.Linear(12, 1), rank, 36)
    parts = from_hub(url, rank)
    model = nn.Linear(12, 1)
    with torch.no_grad():
        model.weight.mul_(parts[2]["scale"])
    train(model, rank, 36)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
