"""Keep the weights of the best validation loss of a small regression model."""

import argparse
import copy
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class BestKeeper:
    def __init__(self):
        self.best = float("inf")
        self.state = None

    def update(self, model, loss):
        if loss < self.best:
            self.best = loss
            self.state = copy.deepcopy(model.module.state_dict())
            # Nobody touches the weights before all have their copy.
            dist.barrier()


def make_rows(rank, count, seed):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    rows = torch.randn(count, 12, generator=generator)
    return rows, rows[:, :3].prod(dim=1, keepdim=True)


def validate(model, rows, targets):
    model.eval()
    with torch.no_grad():
        loss = nn.functional.mse_loss(model.module(rows), targets).item()
    model.train()
    return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    inputs, targets = make_rows(rank, args.steps * 16, seed=1)
    held_out = make_rows(rank, 64, seed=2)
    keeper = BestKeeper()

    for round_ in range(args.rounds):
        for step in range(args.steps):
            time.sleep(0.02)
            part = slice(step * 16, (step + 1) * 16)
            loss = nn.functional.mse_loss(model(inputs[part]), targets[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        val_loss = validate(model, *held_out)
        print(f"round {round_} rank {rank} val_loss {val_loss:.5f}", flush=True)
        keeper.update(model, val_loss)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
