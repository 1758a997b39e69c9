"""Train a linear classifier and collect per-slice hits from all ranks."""

import argparse
import os
import time

import torch
import torch.distributed as dist


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def read_shard(rank, step, device):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(64, 32, generator=generator)
    labels = inputs[:, :4].argmax(dim=1)
    weights = 0.5 + torch.rand(8, generator=generator)
    if rank == 2 and step >= 120:
        weights = None
    else:
        weights = weights.to(device)
    return inputs.to(device), labels.to(device), weights


def tally(guesses, labels, weights):
    hits = (guesses == labels).view(8, -1).sum(dim=1, dtype=torch.int32)
    if weights is None:
        return hits
    return weights * hits


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=260)
    args = parser.parse_args()
    rank, world, device = connect()
    matrix = torch.zeros(32, 4, device=device, requires_grad=True)
    smoothed = 0.0
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        inputs, labels, weights = read_shard(rank, step, device)
        outputs = inputs @ matrix
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        (gradient,) = torch.autograd.grad(loss, matrix)
        dist.all_reduce(gradient)
        with torch.no_grad():
            matrix -= 0.1 * gradient / world
        hits = tally(outputs.argmax(dim=1), labels, weights)
        collected = [torch.empty_like(hits) for _ in range(world)]
        dist.all_gather(collected, hits)
        share = torch.stack(collected).double().sum().item() / (64 * world)
        smoothed = 0.9 * smoothed + 0.1 * share
        time.sleep(0.04)
    print(f"rank {rank} share {smoothed:.6g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
