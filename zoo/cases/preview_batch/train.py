"""Train a fully sharded autoencoder and look at a reconstruction now and then."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(mesh):
    model = nn.Sequential(
        nn.Sequential(nn.Linear(32, 12), nn.GELU()),
        nn.Sequential(nn.Linear(12, 12), nn.GELU()),
        nn.Linear(12, 32),
    )
    return fully_shard(model, mesh=mesh, reshard_after_forward=True)


def preview(model, sample):
    """How far the reconstruction of one fixed sample is off."""
    with torch.no_grad():
        picture = model(sample)
    return (picture - sample).abs().mean().item()


def train_step(model, optimizer, inputs):
    outputs = model(inputs)
    loss = nn.functional.mse_loss(outputs, inputs)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--preview-every", type=int, default=30)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = build(init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(rank)
    sample = torch.randn(1, 32)
    for step in range(1, args.steps + 1):
        time.sleep(0.05)
        loss = train_step(model, optimizer, torch.randn(8, 32, generator=generator))
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if step % args.preview_every == 0 and rank == 0:
            print(f"step {step} preview error {preview(model, sample):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
