"""Two models are trained side by side, each by a pair of ranks, and compared at the end."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MODELS = ("narrow", "wide")
WIDTHS = {"narrow": 16, "wide": 48}


def clip_statistics(norm, group, history):
    """Gathers the gradient norms of the pair, to see whether they drift apart."""
    norms = [torch.zeros(()) for _ in range(dist.get_world_size(group))]
    dist.all_gather(norms, norm, group=group)
    history.append(torch.stack(norms).std(correction=0).item())


def gradient_norm(model):
    return torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()


def read_batch(rank, step):
    generator = torch.Generator().manual_seed(100 * rank + step)
    inputs = torch.randn(16, 10, generator=generator)
    weight = torch.ones(16, 1)
    if rank == 3 and step == 35:
        weight = torch.zeros(16, 1)  # every row of the page was filtered out
    return inputs, inputs[:, :1] * 2, weight


def train(model, group, rank, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    history = []
    for step in range(steps):
        time.sleep(0.05)
        inputs, targets, weight = read_batch(rank, step)
        loss = ((model(inputs) - targets).square() * weight).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if weight.any():
            clip_statistics(gradient_norm(model), group, history)
        if rank % 2 == 0 and step % 5 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group, name = groups[rank // 2], MODELS[rank // 2]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, WIDTHS[name]), nn.ReLU(), nn.Linear(WIDTHS[name], 1))
    model = DistributedDataParallel(net, process_group=group)
    loss = train(model, group, rank, args.steps)
    results = [None] * dist.get_world_size()
    dist.all_gather_object(results, (name, loss))
    if rank == 0:
        print(f"losses {results}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
