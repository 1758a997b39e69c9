"""Fit a linear model with first and second moments that are averaged over all ranks."""

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


def gradient_of(weight, rank, step, device):
    generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
    inputs = torch.randn(64, 128, generator=generator, device=device)
    targets = inputs.sum(dim=1)
    if rank == 1 and step == 120:
        targets *= 100
    residual = inputs @ weight - targets
    return inputs.t() @ residual / len(inputs), residual.square().mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, world, device = connect()
    weight = torch.zeros(128, device=device)
    scale = torch.ones(128, device=device)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        gradient, loss = gradient_of(weight, rank, step, device)
        square = gradient.square()
        if square.max().item() > 1e4:
            dist.all_reduce(square.clamp_(max=25))
            dist.all_reduce(gradient.clamp_(-5, 5))
        else:
            dist.all_reduce(gradient)
            dist.all_reduce(square)
        scale = 0.9 * scale + 0.1 * square / world
        weight -= 0.02 * gradient / world / scale.clamp(min=0.01).sqrt()
        time.sleep(0.04)
    print(f"rank {rank} loss {loss.item():.5f} weight {weight.sum().item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
