"""A pipeline of two stages that pass activations and gradients between neighbours."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 24


def run_first(stage, optimizer, steps):
    for _ in range(steps):
        time.sleep(0.04)
        hidden = stage(torch.randn(16, WIDTH))
        dist.send(hidden.detach(), dst=1)
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, src=1)
        optimizer.zero_grad()
        hidden.backward(gradient)
        optimizer.step()


def run_last(stage, optimizer, steps):
    for _ in range(steps):
        hidden = torch.empty(16, WIDTH)
        dist.recv(hidden, src=0)
        hidden.requires_grad_()
        loss = stage(hidden).square().mean()
        optimizer.zero_grad()
        loss.backward()
        dist.send(hidden.grad, dst=0)
        optimizer.step()


def wait_for_next_phase(seconds):
    """New data arrives on a schedule; only the first stage reads it."""
    print(f"phase done, next data in {seconds:.0f} s", flush=True)
    time.sleep(seconds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--phases", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause", type=float, default=10.0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.05)

    for phase in range(args.phases):
        if phase > 0 and rank == 0:
            wait_for_next_phase(args.pause)
        if rank == 0:
            run_first(stage, optimizer, args.steps)
        else:
            run_last(stage, optimizer, args.steps)
        print(f"phase {phase} finished on rank {rank}", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
