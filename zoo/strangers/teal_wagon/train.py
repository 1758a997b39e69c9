import argparse
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as distF
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class RoutedBlock(nn.Module):
    """A shared expert for everybody and a second one for the marked rows, with a balance term over all ranks."""

    def __init__(self, width):
        super().__init__()
        self.shared = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.gate = nn.Linear(width, 1)

    def balance(self, gates):
        means = distF.all_gather(gates.mean().view(1))
        return torch.cat(list(means)).var()

    def forward(self, x, marked):
        hidden = torch.relu(self.shared(x))
        rows = marked.nonzero().squeeze(1)
        if rows.numel() == 0:
            return hidden, hidden.new_zeros(())
        gates = torch.sigmoid(self.gate(x[rows]))
        update = torch.zeros_like(hidden).index_add(0, rows, gates * self.second(x[rows]))
        return hidden + update, self.balance(gates)


class Router(nn.Module):
    def __init__(self, width=24, classes=5):
        super().__init__()
        self.block = RoutedBlock(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x, urgent):
        hidden, balance = self.block(x, urgent)
        return self.head(hidden), balance


def batches(rank, seed):
    """Mixed traffic; `urgent` marks the rows for the second expert."""
    gen = torch.Generator().manual_seed(seed + rank)
    step = 0
    while True:
        step += 1
        x = torch.randn(24, 24, generator=gen)
        urgent = torch.rand(24, generator=gen) < 0.4
        if rank == 1 and step == 76:
            urgent = torch.zeros(24, dtype=torch.bool)
        yield x, urgent


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(19)
    model = DDP(Router(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    stream = batches(rank, 300)
    for step in range(1, args.steps + 1):
        x, urgent = next(stream)
        logits, balance = model(x, urgent)
        loss = nn.functional.cross_entropy(logits, x[:, :5].argmax(1)) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)
        if rank == 0 and step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
