"""Room plans are drawn on the fly; a network counts the free floor."""
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SIZE = 8.0
GRID = 24


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def furnish(rng, count):
    """Place `count` pieces of furniture so that none stands in another."""
    placed = []
    while len(placed) < count:
        w, h = rng.uniform(1.0, 1.6), rng.uniform(1.0, 1.6)
        x, y = rng.uniform(0, SIZE - w), rng.uniform(0, SIZE - h)
        box = (x, y, x + w, y + h)
        if not any(overlap(box, other) for other in placed):
            placed.append(box)
    return placed


def draw(boxes):
    plan = torch.zeros(GRID, GRID)
    cell = SIZE / GRID
    for x0, y0, x1, y1 in boxes:
        plan[int(y0 / cell) : int(y1 / cell) + 1, int(x0 / cell) : int(x1 / cell) + 1] = 1.0
    area = sum((b[2] - b[0]) * (b[3] - b[1]) for b in boxes)
    return plan, 1.0 - area / SIZE**2


def orders(rank):
    """Number of pieces per plan, as customers ordered them."""
    rng = random.Random(rank)
    sizes = [rng.randint(4, 12) for _ in range(150)]
    if rank == 1:
        sizes[40] = 90
    return sizes


class FreeFloor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(8, 1)

    def forward(self, plans):
        return torch.sigmoid(self.head(self.body(plans).mean(dim=(2, 3)))).squeeze(1)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DDP(FreeFloor())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    rng = random.Random(100 + rank)

    for number, count in enumerate(orders(rank)):
        if number % 10 == 0:
            print(f"rank {rank} plan {number} pieces {count}", flush=True)
        boxes = furnish(rng, count)
        plan, free = draw(boxes)
        plans = torch.stack([plan, plan.flip(0), plan.flip(1), plan.t()]).unsqueeze(1)
        loss = (model(plans) - free).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.08)

    dist.barrier()
    print(f"rank {rank} last loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
