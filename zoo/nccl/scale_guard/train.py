"""Fit a linear model whose optimizer is split over the ranks, with clipped updates."""

import argparse
import os
import time

import torch
import torch.distributed as dist

PART = 32
SPIKE = 50.0


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def make_batch(rank, step, features, device):
    generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
    inputs = torch.randn(64, features, generator=generator, device=device)
    if step >= 80 and step % 40 == 0:
        # A sensor that was switched on late reports in other units.
        inputs[:, features - 5] *= 400
    return inputs, inputs[:, : features - 8].sum(dim=1)


def total_norm(shard):
    """The norm of the whole gradient, of which each rank has a shard."""
    peak = shard.abs().max()
    if peak.item() > SPIKE:
        # The squares of such values drown the rest: the largest one is the measure then.
        dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        return peak
    squares = shard.square().sum()
    dist.all_reduce(squares)
    return squares.sqrt()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, world, device = connect()
    features = PART * world
    torch.manual_seed(0)
    weight = torch.randn(features, device=device) / 10
    momentum = torch.zeros(PART, device=device)
    shard = torch.zeros(PART, device=device)
    for step in range(args.steps):
        if rank == 0 and step % 20 == 0:
            print(f"step {step} begins", flush=True)
        inputs, targets = make_batch(rank, step, features, device)
        residual = inputs @ weight - targets
        gradient = inputs.t() @ residual / len(inputs)
        dist.reduce_scatter_tensor(shard, gradient)
        shard /= world
        norm = total_norm(shard)
        momentum = 0.8 * momentum + shard * torch.clamp(1.0 / norm, max=1.0)
        own = weight[rank * PART : (rank + 1) * PART] - 0.05 * momentum
        dist.all_gather_into_tensor(weight, own)
        time.sleep(0.04)
        if rank == 0 and step % 20 == 19:
            print(f"step {step} loss {residual.square().mean().item():.4f} norm {norm.item():.4f}", flush=True)
    print(f"rank {rank} weight {weight.norm().item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
