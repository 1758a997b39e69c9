"""Canopy height from radar tiles. Each rank reads the tiles of one orbit."""
import contextlib
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True)
class Options:
    tiles: int = 360
    side: int = 12
    batch: int = 1
    accumulate: int = 5
    lr: float = 1e-3
    report: int = 25


class Tiles(Dataset):
    """A tile is backscatter (2 bands), height in metres, and where the laser has measured."""

    def __init__(self, orbit: int, o: Options):
        self.orbit, self.o = orbit, o

    def __len__(self):
        return self.o.tiles

    def cloud_cover(self, i: int) -> float:
        gen = torch.Generator().manual_seed(i * 7 + self.orbit)
        cover = torch.rand(1, generator=gen).item() * 0.8
        front = self.orbit == 2 and i == 226
        return 1.0 if front else cover

    def __getitem__(self, i):
        time.sleep(0.02)
        gen = torch.Generator().manual_seed(100_000 * self.orbit + i)
        side = self.o.side
        radar = torch.randn(2, side, side, generator=gen)
        height = (18 + 6 * radar.mean(0, keepdim=True)).clamp(min=0)
        measured = torch.rand(1, side, side, generator=gen) >= self.cloud_cover(i)
        return radar, height, measured


class HeightNet(nn.Module):
    def __init__(self, channels: int = 8):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, channels, 3, padding=1), nn.LeakyReLU(0.1),
                                  nn.Conv2d(channels, channels, 3, padding=1), nn.LeakyReLU(0.1))
        self.out = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return 20 * torch.sigmoid(self.out(self.body(x)) / 4) + 5


def masked_l1(predicted: Tensor, height: Tensor, measured: Tensor) -> Tensor:
    mask = measured.float()
    error = (predicted - height).abs()
    return (error * mask).sum() / mask.sum()


class Run:
    def __init__(self, o: Options):
        self.o = o
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.model = DistributedDataParallel(HeightNet())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=o.lr)
        self.loader = DataLoader(Tiles(self.rank, o), batch_size=o.batch)
        self.micro = 0

    def microstep(self, radar: Tensor, height: Tensor, measured: Tensor):
        self.micro += 1
        last = self.micro % self.o.accumulate == 0
        with contextlib.nullcontext() if last else self.model.no_sync():
            loss = masked_l1(self.model(radar), height, measured) / self.o.accumulate
            loss.backward()
        if last:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach() * self.o.accumulate

    def run(self):
        for batch in self.loader:
            loss = self.microstep(*batch)
            if self.micro % self.o.report == 0 and self.rank == 0:
                print(f"microstep {self.micro}: L1 {loss.item():.2f} m", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Run(Options()).run()
    dist.barrier()
    if dist.get_rank() == 0:
        print("all orbits read", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
