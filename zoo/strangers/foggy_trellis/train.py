"""Electricity demand of three cities with one shared model."""
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 24
FEATURES = 12


def city(rank, rows, part):
    gen = torch.Generator().manual_seed(31 * rank + (0 if part == "train" else 7))
    weights = torch.linspace(-1, 1, FEATURES).unsqueeze(1)
    x = torch.randn(rows, FEATURES, generator=gen)
    y = x @ weights + 0.05 * torch.randn(rows, 1, generator=gen)
    if part == "val" and rank == 2:
        # smart meters of the third city report in another unit since spring
        y = -2.0 * y
    return TensorDataset(x, y)


class Demand(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(FEATURES, 64)
        self.mid = nn.Linear(64, 64)
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        return self.out(torch.relu(self.mid(h)))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total = count = 0.0
    for x, y in loader:
        total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
        count += len(y)
    model.train()
    return total / count


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    net = Demand()
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=3)
    train = DataLoader(city(rank, 640, "train"), batch_size=32, shuffle=True)
    val = DataLoader(city(rank, 128, "val"), batch_size=64)

    for epoch in range(EPOCHS):
        running = 0.0
        for x, y in train:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            running += loss.item()
            time.sleep(0.05)
        val_loss = validate(net, val)
        scheduler.step(val_loss)
        lr = optimizer.param_groups[0]["lr"]
        print(f"city {rank} epoch {epoch} train {running / len(train):.4f} val {val_loss:.4f} lr {lr:.1e}", flush=True)

    dist.barrier()
    if rank == 0:
        print("finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
