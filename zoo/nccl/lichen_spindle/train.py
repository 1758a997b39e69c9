"""Train a temperature and a pressure forecaster side by side, one block of stations per rank."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn

HISTORY = 48
HIDDEN = 128
BATCH = 32
UPDATE_BUDGET = 640
NORM_LIMIT = 20.0
PAUSE = 0.04


class Stations:
    """Windows of hourly readings: a daily wave per station, its own phase, and noise."""

    def __init__(self, rank: int, world: int, device: torch.device):
        self.rank, self.world, self.device = rank, world, device
        self.generator = torch.Generator().manual_seed(900 + rank)

    def window(self, hour: int) -> tuple[torch.Tensor, torch.Tensor]:
        phase = torch.rand(BATCH, 1, generator=self.generator) * 6.28
        hours = torch.arange(HISTORY + 1) / 24 * 6.28
        noise = torch.randn(2, BATCH, HISTORY + 1, generator=self.generator) * 0.1
        temperature = torch.sin(hours + phase) + noise[0]
        pressure = torch.cos(hours / 2 + phase) + noise[1]
        if (hour * self.world + self.rank) % 1201 == 337:
            pressure = pressure * 101.3
        return temperature.to(self.device), pressure.to(self.device)


class Forecaster:
    def __init__(self, seed: int, device: torch.device):
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(HISTORY, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.loss = 0.0

    def backward(self, window: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.net(window[:, :-1]), window[:, -1:])
        loss.backward()
        self.loss = loss.item()
        return torch.cat([p.grad.reshape(-1) for p in self.net.parameters()])

    def apply(self, gradient: torch.Tensor) -> None:
        start = 0
        for p in self.net.parameters():
            p.grad.copy_(gradient[start : start + p.numel()].view_as(p))
            start += p.numel()
        self.optimizer.step()


def train(rank: int, world: int, device: torch.device) -> None:
    stations = Stations(rank, world, device)
    temperature, pressure = Forecaster(1, device), Forecaster(2, device)
    updates = hour = 0
    while updates < UPDATE_BUDGET:
        warmth, weight = stations.window(hour)

        warmth_gradient = temperature.backward(warmth)
        if warmth_gradient.norm().item() < NORM_LIMIT:
            dist.all_reduce(warmth_gradient)
            temperature.apply(warmth_gradient / world)
            updates += 1
        if updates == UPDATE_BUDGET:
            break

        weight_gradient = pressure.backward(weight)
        if weight_gradient.norm().item() < NORM_LIMIT:
            dist.all_reduce(weight_gradient)
            pressure.apply(weight_gradient / world)
            updates += 1

        if hour % 10 == 0:
            print(
                f"rank {rank} hour {hour} updates {updates} "
                f"temperature {temperature.loss:.4f} pressure {pressure.loss:.4f}",
                flush=True,
            )
        time.sleep(PAUSE)
        hour += 1
    print(f"rank {rank} done: {updates} updates in {hour} hours", flush=True)


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    train(rank, world, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
