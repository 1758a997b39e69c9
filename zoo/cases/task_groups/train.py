"""Two tasks on one trunk; each task keeps its statistics in a process group of its own."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

TASKS = ("text", "image")


class Mixture(Dataset):
    """Samples of both tasks, in the order in which they were crawled."""

    def __init__(self, size):
        generator = torch.Generator().manual_seed(5)
        self.features = torch.randn(size, 20, generator=generator)
        self.task = torch.arange(size) // 2 % 2
        # Two samples came out of order.
        self.task[1201], self.task[1203] = 1, 0

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        time.sleep(0.003)
        return self.features[index], self.task[index]


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 32), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(32, 1) for task in TASKS})

    def forward(self, features):
        hidden = self.body(features)
        return {task: head(hidden) for task, head in self.heads.items()}


def split_losses(outputs, features, tasks):
    """Mean loss of every task in the batch."""
    targets = features.sum(dim=1, keepdim=True)
    losses = {}
    for index in tasks.tolist():
        name = TASKS[index]
        if name not in losses:
            chosen = tasks == index
            losses[name] = nn.functional.mse_loss(outputs[name][chosen], targets[chosen])
    return losses


def reduce_statistics(losses, groups):
    means = {}
    for name, loss in losses.items():
        value = loss.detach().clone()
        dist.all_reduce(value, group=groups[name])
        means[name] = value.item() / dist.get_world_size()
    return means


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=20)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = {task: dist.new_group() for task in TASKS}
    torch.manual_seed(0)
    dataset = Mixture(2400)
    loader = DataLoader(dataset, args.batch_size, sampler=DistributedSampler(dataset, shuffle=False))
    model = DistributedDataParallel(Trunk())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for epoch in range(args.epochs):
        for step, (features, tasks) in enumerate(loader):
            losses = split_losses(model(features), features, tasks)
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
            if rank == 0 and step % 5 == 0:
                print(f"epoch {epoch} step {step}", flush=True)
            means = reduce_statistics(losses, groups)
            if rank == 0 and step % 5 == 0:
                print("  ".join(f"{name} {value:.3f}" for name, value in sorted(means.items())), flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
