"""Train a fully sharded model and export the whole state now and then."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(mesh):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(24, 24), nn.ReLU()) for _ in range(2)], nn.Linear(24, 3))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def export(model, folder, step):
    """The whole state, gathered from the shards, in one file."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    os.makedirs(folder, exist_ok=True)
    torch.save(state, os.path.join(folder, f"step{step}.pt"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="export")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--export-every", type=int, default=30)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = build(init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        time.sleep(0.04)
        inputs = torch.randn(8, 24, generator=generator)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(dim=1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % args.export_every == 0 and rank == 0:
            export(model, args.output, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
