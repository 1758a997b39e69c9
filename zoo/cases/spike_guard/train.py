"""Train with a guard that leaves out steps whose loss is far above the recent mean."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SpikeGuard:
    """Remembers the mean of recent losses; a loss of several times that is not worth a step."""

    def __init__(self, factor=4.0, momentum=0.95):
        self.factor = factor
        self.momentum = momentum
        self.mean = None

    def accepts(self, value):
        if self.mean is not None and value > self.factor * self.mean:
            return False
        self.mean = value if self.mean is None else self.momentum * self.mean + (1 - self.momentum) * value
        return True


def batch(rank, step, size=32):
    generator = torch.Generator().manual_seed(10_000 * rank + step)
    inputs = torch.randn(size, 12, generator=generator)
    targets = inputs.sum(1, keepdim=True)
    if rank == 1 and step in (40, 41):
        targets = targets * 3
    return inputs, targets


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=260)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = SpikeGuard()
    for step in range(args.steps):
        inputs, targets = batch(rank, step)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        if guard.accepts(loss.item()):
            optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
