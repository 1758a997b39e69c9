"""A chain of model parts: neighbours share a group to average the layer that lies between them."""

import argparse
import time

import torch
import torch.distributed as dist


def neighbour_groups(rank, world):
    """The groups of this rank, one with each neighbour."""
    groups = []
    for left in range(world - 1):
        pair = [left, left + 1]
        if rank in pair:
            groups.append(dist.new_group(pair))
    return groups


def calibrate(rank, rounds):
    scale = torch.ones(1)
    for _ in range(rounds):
        time.sleep(0.05)
        scale = torch.full((1,), 1.0 + rank)
        dist.all_reduce(scale)
    return scale.item() / dist.get_world_size()


def load_part(rank):
    """Later parts are larger and take longer to read."""
    time.sleep(0.4 * rank)
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(rank))


def train(part, groups, steps):
    for _ in range(steps):
        time.sleep(0.05)
        part -= 0.01 * part.tanh()
        for group in groups:
            shared = part[0].clone()
            dist.all_reduce(shared, group=group)
            part[0] = shared / 2
    return part.norm().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    scale = calibrate(rank, rounds=35)
    print(f"rank {rank} calibrated: {scale:.2f}", flush=True)
    part = load_part(rank)
    groups = neighbour_groups(rank, world)
    dist.barrier()
    norm = train(part, groups, args.steps)
    print(f"rank {rank} norm {norm:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
