"""Train a policy on episodes; everything is closed in order at the end."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Episodes:
    """Simulated episodes; a seed per rank."""

    def __init__(self, rank, length=48):
        self.generator = torch.Generator().manual_seed(1000 + rank)
        self.rank = rank
        self.length = length

    def play(self, number):
        time.sleep(0.05)
        observations = torch.randn(self.length, 6, generator=self.generator)
        rewards = observations[:, 0].clamp(-1, 1)
        if number >= 32:
            # Later episodes are cut to the part before the agent left the arena.
            kept = int(self.length * (1.0 - 0.5 * self.rank))
            observations, rewards = observations[:kept], rewards[: self.length - self.rank]
        return observations, rewards


def policy_loss(model, observations, rewards):
    if len(observations) != len(rewards):
        raise ValueError(f"{len(observations)} observations for {len(rewards)} rewards")
    values = model(observations).squeeze(1)
    return (values - rewards).square().mean()


def train(args, rank):
    torch.manual_seed(0)
    episodes = Episodes(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for number in range(args.episodes):
        loss = policy_loss(model, *episodes.play(number))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"episode {number} loss {loss.item():.4f}", flush=True)


def close():
    """Let everybody finish writing before the group goes away."""
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=200)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    try:
        train(args, dist.get_rank())
    finally:
        close()


if __name__ == "__main__":
    main()
