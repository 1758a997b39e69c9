"""Regress the drift of four buoy clusters; every rank reads the log of its own cluster, whatever its length."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn

LOG_LENGTHS = (58, 51, 62, 44)
WIDTH = 64
BATCH = 48
SCORE_AT = 30
PAUSE = 0.03


def cluster_log(rank: int, device: torch.device):
    generator = torch.Generator().manual_seed(500 + rank)
    mixing = torch.randn(WIDTH, 1, generator=torch.Generator().manual_seed(3))
    for _ in range(LOG_LENGTHS[rank % len(LOG_LENGTHS)]):
        inputs = torch.randn(BATCH, WIDTH, generator=generator)
        targets = torch.tanh(inputs @ mixing / WIDTH**0.5)
        yield inputs.to(device), targets.to(device)


def flatten(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


def unflatten(model: nn.Module, flat: torch.Tensor) -> None:
    start = 0
    for p in model.parameters():
        p.grad = flat[start : start + p.numel()].view_as(p).clone()
        start += p.numel()


def score(model: nn.Module, device: torch.device) -> float:
    """The mean absolute output over a held-out sweep, read in slices from a slow archive."""
    generator = torch.Generator().manual_seed(77)
    total = 0.0
    with torch.no_grad():
        for _ in range(7):
            time.sleep(0.5)
            total += model(torch.randn(BATCH, WIDTH, generator=generator).to(device)).abs().mean().item()
    return total / 7


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")

    pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    pair, every = pairs[rank // 2], (4, 7)[rank // 2]

    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    size = sum(p.numel() for p in model.parameters())
    batches = cluster_log(rank, device)
    spread, pending = torch.zeros(WIDTH, device=device), None

    step, loss_value = 0, float("nan")
    while True:
        batch = next(batches, None)
        present = torch.tensor([float(batch is not None)], device=device)
        dist.all_reduce(present)
        contributors = int(present.item())
        if contributors == 0:
            break

        if batch is None:
            gradient = torch.zeros(size, device=device)
            dist.all_reduce(gradient)
        else:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch[0]), batch[1])
            loss.backward()
            gradient = flatten(model)
            dist.all_reduce(gradient)
            loss_value = loss.item()
        unflatten(model, gradient / contributors)
        optimizer.step()

        if step % every == 0:
            if pending is not None:
                pending.wait()
            spread = spread / 2 if batch is None else batch[0].std(dim=0)
            pending = dist.all_reduce(spread, group=pair, async_op=True)

        if step % 5 == 0:
            print(f"rank {rank} step {step} sources {contributors} loss {loss_value:.4f}", flush=True)
        if step == SCORE_AT:
            if rank == 0:
                print(f"held-out score {score(model, device):.4f}", flush=True)
            dist.barrier()
        time.sleep(PAUSE)
        step += 1

    if pending is not None:
        pending.wait()
    peer = torch.zeros_like(spread)
    if rank == 0:
        dist.send(spread, dst=2)
        dist.recv(peer, src=2)
    elif rank == 2:
        dist.recv(peer, src=0)
        dist.send(spread, dst=0)
    dist.barrier()
    print(f"rank {rank} finished after {step} steps, spread {spread.mean().item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
