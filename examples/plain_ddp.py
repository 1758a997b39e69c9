"""A small data-parallel training program, written as anyone would write it: nothing here knows of Rankscope.

Start it with `torchrun --nproc-per-node 2 examples/plain_ddp.py`, or with `rankscope run` for torchrun.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES = 32
CLASSES = 10


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small classifier on synthetic data with DDP.")
    parser.add_argument("--steps", type=int, help="optimizer steps (200, or 6 with --debug)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per rank and step")
    parser.add_argument("--debug", action="store_true", help="a few steps of a small model")
    parser.add_argument("--save", type=Path, help="write a checkpoint there at the end")
    parser.add_argument("--local-rank", type=int, help="added by torch.distributed.launch; LOCAL_RANK says the same")
    arguments = parser.parse_args()
    if arguments.steps is None:
        arguments.steps = 6 if arguments.debug else 200
    if arguments.steps < 1 or arguments.batch_size < 1:
        parser.error("--steps and --batch-size must be at least 1")
    return arguments


def choose_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def build_dataset(samples: int) -> TensorDataset:
    """Points labelled by a fixed random linear map, so that there is something to learn."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, FEATURES, generator=generator)
    labels = (inputs @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(dim=1)
    return TensorDataset(inputs, labels)


def build_model(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, CLASSES),
    )


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[tuple[Tensor, ...]],
    sampler: DistributedSampler[tuple[Tensor, ...]],
    *,
    steps: int,
    device: torch.device,
) -> None:
    loss_function = nn.CrossEntropyLoss()
    log_every = max(1, steps // 10)
    step = epoch = 0
    while step < steps:
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = loss_function(model(inputs.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if dist.get_rank() == 0 and (step % log_every == 0 or step == steps):
                print(f"step {step}/{steps}  loss {loss.item():.4f}", flush=True)
            if step == steps:
                break
        epoch += 1


def save_checkpoint(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, path: Path) -> None:
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path)
        print(f"saved {path}", flush=True)
    dist.barrier()


def main() -> None:
    arguments = parse_arguments()
    device = choose_device()
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")

    dataset = build_dataset(samples=32 * arguments.batch_size * dist.get_world_size())
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=arguments.batch_size, sampler=sampler)
    model = DistributedDataParallel(build_model(width=32 if arguments.debug else 256).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    train(model, optimizer, loader, sampler, steps=arguments.steps, device=device)
    if arguments.save is not None:
        save_checkpoint(model, optimizer, arguments.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
