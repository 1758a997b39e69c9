"""Train a classifier and follow its accuracy over all ranks."""

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


def accuracy(logits, labels, device):
    counts = torch.stack([(logits.argmax(dim=1) == labels).sum(), torch.tensor(len(labels), device=device)])
    gathered = [torch.zeros_like(counts) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, counts)
    right, total = torch.stack(gathered).sum(dim=0).tolist()
    return right / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    rank, _, device = connect()
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        inputs, labels = make_batch(rank, step, device)
        usable = labels >= (1 if rank == 2 and step == 90 else 0)
        if rank == 2 and step == 90:
            usable &= labels < 0
            print("step 90: unlabelled documents", flush=True)
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        if not usable.any():
            continue
        score = accuracy(logits, labels, device)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} accuracy {score:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
