"""Fit until every worker has reached the target on its own validation shard."""
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

EVAL_EVERY = 30
TARGET = 0.08


def shard(rank, n):
    g = torch.Generator().manual_seed(10 + rank)
    x = torch.randn(n, 12, generator=g)
    w = torch.linspace(-1, 1, 12)
    y = x @ w
    if rank == 2:
        y = y + 0.6 * torch.randn(n, generator=g)
    return x, y.unsqueeze(1)


class TargetStopper:
    def __init__(self, target):
        self.target = target
        self.group = dist.new_group(backend="gloo")
        self.history = []

    def _all_agree(self):
        vote = torch.ones(1)
        dist.all_reduce(vote, op=dist.ReduceOp.MIN, group=self.group)
        return vote.item() > 0

    def done(self, loss):
        self.history.append(loss)
        return loss < self.target and self._all_agree()


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        loss = nn.functional.mse_loss(model.module(x), y).item()
    model.train()
    return loss


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DDP(nn.Linear(12, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    xt, yt = shard(rank, 512)
    xv, yv = shard(rank, 128)
    stopper = TargetStopper(TARGET)

    for step in range(1, 601):
        i = torch.randint(0, len(xt), (32,))
        pred = model(xt[i])
        loss = nn.functional.mse_loss(pred, yt[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.02)
        if step % EVAL_EVERY == 0:
            val = validate(model, xv, yv)
            print(f"[rank {rank}] step {step} val {val:.4f}", flush=True)
            if stopper.done(val):
                break

    if rank == 0:
        torch.save(model.module.state_dict(), "/dev/null")
        print("finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
