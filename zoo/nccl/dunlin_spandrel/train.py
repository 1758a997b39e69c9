"""One-stage detector on survey frames: objectness for every cell, box regression where boxes exist."""
import os
import random
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

GRID = 12
BATCH = 6
STEPS = 140


@dataclass
class Frames:
    pixels: torch.Tensor
    cells: torch.Tensor
    boxes: torch.Tensor


class Survey:
    """Frames of one flight line. The line crosses fields, then forest or water; boxes are vehicles."""

    def __init__(self, line, seed):
        self.rng = random.Random(f"line-{seed}-{line}")
        self.gen = torch.Generator().manual_seed(70 + line)
        self.shore = self.rng.randint(60, 400)

    def frames(self, index):
        pixels = torch.randn(BATCH, 3, 4 * GRID, 4 * GRID, generator=self.gen)
        cells = torch.zeros(BATCH, GRID, GRID)
        for image in range(BATCH):
            vehicles = self.rng.randint(1, 4) if index < self.shore else 0
            for _ in range(vehicles):
                cells[image, self.rng.randrange(GRID), self.rng.randrange(GRID)] = 1.0
        boxes = torch.rand(BATCH, 4, GRID, GRID, generator=self.gen)
        return Frames(pixels, cells, boxes)


class Detector(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())
        self.objectness = nn.Conv2d(width, 1, 1)
        self.regress = nn.Conv2d(width, 4, 1)

    def forward(self, x):
        h = self.stem(x)
        return self.objectness(h).squeeze(1), self.regress(h)


class Criterion:
    def __init__(self, device):
        self.device = device
        self.unlabelled = 0
        self.fleet_unlabelled = 0.0

    def box_loss(self, regress, frames):
        found = frames.cells.bool()
        if not found.any():
            self.unlabelled += 1
            return regress.sum() * 0.0
        matched = found.unsqueeze(1).expand_as(regress)
        norm = found.sum().float().reshape(1)
        dist.all_reduce(norm)
        norm = (norm / dist.get_world_size()).clamp(min=1.0)
        return F.smooth_l1_loss(regress[matched], frames.boxes[matched], reduction="sum") / norm.squeeze(0)

    def __call__(self, objectness, regress, frames):
        cell = F.binary_cross_entropy_with_logits(objectness, frames.cells)
        return cell + 0.2 * self.box_loss(regress, frames)

    def log_values(self, loss):
        shown = loss.detach().reshape(1).clone()
        dist.all_reduce(shown)
        if self.unlabelled:
            pending = torch.tensor([float(self.unlabelled)], device=self.device)
            dist.all_reduce(pending)
            self.fleet_unlabelled += pending.item()
            self.unlabelled = 0
        return shown.item() / dist.get_world_size()


def main():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(13)

    model = DistributedDataParallel(Detector().to(device))
    criterion = Criterion(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    survey = Survey(rank, seed=15)
    shown = 0.0

    for step in range(STEPS):
        frames = survey.frames(step)
        frames = Frames(frames.pixels.to(device), frames.cells.to(device), frames.boxes.to(device))
        print(f"rank {rank} step {step} loss {shown:.4f}", flush=True)
        loss = criterion(*model(frames.pixels), frames)
        shown = criterion.log_values(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)

    dist.barrier()
    print(f"rank {rank} done, frames without labels {criterion.fleet_unlabelled:.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
