"""Pitch estimation on old recordings, with accelerate's gradient accumulation."""
import math
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

MOVEMENTS = 4
NOTES = 480


class Disk:
    """Seek times of the mounted volumes, in seconds: /vault/b was moved to the old array after the second movement."""

    table = {"/vault/a": (0.006, 0.006), "/vault/b": (0.006, 0.03), "/vault/c": (0.006, 0.007)}

    def __init__(self, volume: str):
        self.volume = volume

    def latency(self, movement: int) -> float:
        return self.table[self.volume][movement >= 2]


class Archive:
    def __init__(self, volume: str):
        self.disk = Disk(volume)

    def read(self, movement: int, number: int) -> tuple[torch.Tensor, float]:
        time.sleep(self.disk.latency(movement))
        gen = torch.Generator().manual_seed(movement * NOTES + number)
        pitch = 0.5 + torch.rand(1, generator=gen).item()
        t = torch.arange(64) / 64
        return torch.sin(2 * math.pi * 4 * pitch * t) + 0.1 * torch.randn(64, generator=gen), pitch


class Notes(IterableDataset):
    def __init__(self, volume: str, movement: int):
        self.archive = Archive(volume)
        self.movement = movement

    def __iter__(self):
        for number in range(NOTES):
            note = self.archive.read(self.movement, number)
            yield note[0], torch.tensor([note[1]])


class Pitch(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(1, 8, 9, stride=4)
        self.rnn = nn.GRU(8, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, wave):
        x = torch.relu(self.front(wave[:, None])).transpose(1, 2)
        return self.head(self.rnn(x)[1][-1])


def main():
    torch.set_num_threads(1)
    set_seed(13)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    rank = accelerator.process_index
    volume = sorted(Disk.table)[rank % 3]
    accelerator.print(f"{accelerator.num_processes} players", flush=True)

    model = Pitch()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    model, opt = accelerator.prepare(model, opt)

    for movement in range(MOVEMENTS):
        accelerator.print(f"movement {movement} begins", flush=True)
        loader = DataLoader(Notes(volume, movement), batch_size=8)
        total = torch.zeros(2)
        begun = time.monotonic()
        for wave, pitch in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(wave), pitch)
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
            total += torch.tensor([loss.item(), 1.0])
        total = accelerator.reduce(total, "sum")
        accelerator.print(f"movement {movement}: loss {(total[0] / total[1]).item():.4f}, "
                          f"{time.monotonic() - begun:.1f} s", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
