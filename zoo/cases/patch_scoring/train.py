"""Train a patch scorer, then score the validation patches of each rank and average the result."""

import argparse
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset


class LengthSampler(Sampler):
    """Groups patches of similar size: the small ones to the first ranks, the large ones to the last."""

    def __init__(self, sizes, rank, world):
        order = torch.argsort(sizes)
        bounds = torch.linspace(0, float(sizes.max()) + 1, world + 1)
        mine = (sizes[order] >= bounds[rank]) & (sizes[order] < bounds[rank + 1])
        self.indices = order[mine].tolist()

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


def make_patches(count=1800):
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, 32, generator=generator)
    sizes = torch.rand(count, generator=generator).sqrt() * 64
    return TensorDataset(inputs, inputs.mean(dim=1, keepdim=True)), sizes


def refine(model, patch, rounds):
    """Scores one patch at several scales and keeps the best."""
    best = torch.inf
    for scale in torch.linspace(0.5, 2.0, rounds):
        best = min(best, model(patch * scale).square().mean().item())
    return best


@torch.no_grad()
def validate(model, loader, rank, rounds):
    print(f"rank {rank} scores {len(loader)} patches", flush=True)
    total = torch.zeros(2)
    for patch, _ in loader:
        total += torch.tensor([refine(model, patch, rounds), 1.0])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=320)
    parser.add_argument("--timeout", type=float, default=5.0)
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset, sizes = make_patches()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        time.sleep(0.04)
        inputs, targets = dataset[torch.randint(len(dataset), (32,)).tolist()]
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    loader = DataLoader(dataset, batch_size=1, sampler=LengthSampler(sizes, rank, world))
    print(f"score {validate(model.module, loader, rank, args.rounds):.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
