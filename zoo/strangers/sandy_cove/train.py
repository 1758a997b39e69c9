import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

SIZES = [400, 520, 960]


def make_loader(rank):
    g = torch.Generator().manual_seed(rank)
    n = SIZES[rank % len(SIZES)]
    x = torch.randn(n, 10, generator=g)
    y = (x[:, 0] - x[:, 1] > 0).float()
    return DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, generator=g)


def anyone_has_data(batch):
    flag = torch.tensor([0 if batch is None else 1])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def average_gradients(model, weight):
    total = torch.tensor([float(weight)])
    dist.all_reduce(total)
    for p in model.parameters():
        grad = p.grad if p.grad is not None else torch.zeros_like(p)
        grad = grad * weight
        dist.all_reduce(grad)
        p.grad = grad / total


def train_epoch(model, opt, loader):
    it = iter(loader)
    steps = own = 0
    while True:
        batch = next(it, None)
        if not anyone_has_data(batch):
            return steps, own
        opt.zero_grad()
        if batch is not None:
            x, y = batch
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            loss.backward()
            own += 1
            time.sleep(0.06)
        average_gradients(model, 0 if batch is None else len(batch[0]))
        opt.step()
        steps += 1


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = make_loader(rank)
    for epoch in range(3):
        steps, own = train_epoch(model, opt, loader)
        print(f"[{rank}] epoch {epoch}: {steps} steps, {own} with own data", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
