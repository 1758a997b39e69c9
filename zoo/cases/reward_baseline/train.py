"""Learn a policy from rewards, with a baseline per state that all ranks share."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

STATES = 48


def episodes(rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    states = torch.randint(0, STATES, (40,), generator=generator)
    rewards = torch.rand(40, generator=generator)
    finished = torch.rand(40, generator=generator) < 0.5
    if rank == 1 and step == 80:
        finished[:] = False
    return states, rewards, finished


class Shared:
    def __init__(self):
        self.world = dist.get_world_size()

    def mean(self, values):
        dist.all_reduce(values)
        return values / self.world


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    shared = Shared()
    policy = nn.Parameter(torch.zeros(STATES))
    optimizer = torch.optim.SGD([policy], lr=0.5)
    baseline = torch.zeros(STATES)
    for step in range(args.steps):
        states, rewards, finished = episodes(rank, step)
        advantage = rewards - baseline[states]
        loss = -(torch.log_softmax(policy, 0)[states] * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        policy.grad = shared.mean(policy.grad)
        optimizer.step()
        if finished.any():
            seen = torch.zeros(STATES).index_add_(0, states[finished], rewards[finished])
            baseline = 0.9 * baseline + 0.1 * shared.mean(seen)
        else:
            print(f"rank {rank} finished no episode in step {step}", flush=True)
        time.sleep(0.03)
    print(f"rank {rank} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
