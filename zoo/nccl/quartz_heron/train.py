"""Three pipeline stages over hourly click sessions; every batch goes through in four chunks."""

import math
import os
import time

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 128
CHUNKS = 4
ROWS = 8
STEPS = 400
PAUSE = 0.04


def sessions(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A padded batch of sessions and which rows of it are real; traffic follows the time of day."""
    generator = torch.Generator().manual_seed(6000 + step)
    real = round(29.4 + 5.6 * math.cos(2 * math.pi * step / 152))
    rows = torch.randn(CHUNKS * ROWS, WIDTH, generator=generator)
    keep = torch.arange(CHUNKS * ROWS) < real
    return rows * keep.unsqueeze(1), keep


class Stage:
    def __init__(self, rank: int, world: int, device: torch.device):
        torch.manual_seed(30 + rank)
        self.rank, self.last, self.device = rank, rank == world - 1, device
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02)

    def run_first(self, step: int) -> float:
        batch, real = sessions(step)
        outputs = []
        for rows, keep in zip(batch.chunk(CHUNKS), real.chunk(CHUNKS)):
            if not keep.any():
                continue
            encoded = self.net(rows.to(self.device))
            dist.send(encoded.detach(), dst=self.rank + 1)
            outputs.append(encoded)
        for encoded in outputs:
            gradient = torch.empty_like(encoded)
            dist.recv(gradient, src=self.rank + 1)
            encoded.backward(gradient)
        return self.update()

    def run_middle(self) -> float:
        held = []
        for _ in range(CHUNKS):
            rows = torch.empty(ROWS, WIDTH, device=self.device)
            dist.recv(rows, src=self.rank - 1)
            rows.requires_grad_()
            hidden = self.net(rows)
            dist.send(hidden.detach(), dst=self.rank + 1)
            held.append((rows, hidden))
        for rows, hidden in held:
            upstream = torch.empty_like(hidden)
            dist.recv(upstream, src=self.rank + 1)
            hidden.backward(upstream)
            dist.send(rows.grad, dst=self.rank - 1)
        return self.update()

    def run_last(self) -> float:
        held, total = [], 0.0
        for _ in range(CHUNKS):
            arrived = torch.empty(ROWS, WIDTH, device=self.device)
            dist.recv(arrived, src=self.rank - 1)
            arrived.requires_grad_()
            loss = (self.net(arrived).mean(dim=1) - 0.25).square().mean()
            held.append((arrived, loss))
        for arrived, loss in held:
            loss.backward()
            dist.send(arrived.grad, dst=self.rank - 1)
            total += loss.item()
        self.update()
        return total / CHUNKS

    def update(self) -> float:
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), 1.0).item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")

    stage = Stage(rank, world, device)
    for step in range(STEPS):
        if rank == 0:
            value = stage.run_first(step)
        elif stage.last:
            value = stage.run_last()
        else:
            value = stage.run_middle()
        if step % 5 == 3:
            label = "loss" if stage.last else "norm"
            print(f"stage {rank} step {step} {label} {value:.4f}", flush=True)
        time.sleep(PAUSE)

    print(f"stage {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
