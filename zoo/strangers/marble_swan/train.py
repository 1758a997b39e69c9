"""Stone grading from hyperspectral scans; hybrid sharding (2 replicas x 2 shards)."""
import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class SlowShelf(dcp.FileSystemWriter):
    """The shelf is a tape robot: it takes its time before it writes."""

    def __init__(self, path, seconds: float):
        super().__init__(path)
        self.seconds = seconds

    def write_data(self, plan, planner):
        time.sleep(self.seconds)
        return super().write_data(plan, planner)


class Grader(nn.Module):
    def __init__(self, bands: int, width: int, grades: int):
        super().__init__()
        self.inp = nn.Linear(bands, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
                                    for _ in range(3))
        self.out = nn.Linear(width, grades)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


def scan(step: int, rank: int, bands: int):
    gen = torch.Generator().manual_seed(step * 16 + rank)
    x = torch.randn(6, bands, generator=gen)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    x[torch.rand(x.shape, generator=gen) < 0.02] = float("nan")  # dead pixels
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ckpt", type=Path, default=Path("/tmp/marble"))
    ap.add_argument("--steps", type=int, default=260)
    ap.add_argument("--bands", type=int, default=20)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(6)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    print(f"rank {rank} at {mesh.get_coordinate()} of the mesh", flush=True)

    model = Grader(args.bands, 32, 3)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    side = dist.new_group(backend="gloo")  # for the checkpoint thread
    scale, skipped, pending = 1.0, 0, None

    for step in range(args.steps):
        x, y = scan(step, rank, args.bands)
        x = torch.where(torch.isnan(x), torch.zeros_like(x), x)
        logits = model(x)
        if step % 70 == 33 and rank == 1:
            logits = logits * torch.finfo(torch.float32).max  # a flash of the lamp saturates the sensor
        loss = nn.functional.cross_entropy(logits, y) * scale
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()]).full_tensor()
        if torch.isfinite(norm):
            for p in model.parameters():
                p.grad.div_(scale)
            opt.step()
            scale = min(scale * 1.01, 64.0)
        else:
            skipped += 1
            scale = max(scale / 2, 1.0)
            if rank == 0:
                print(f"step {step}: norm {norm.item()}, step skipped, scale {scale:.2f}", flush=True)
        opt.zero_grad()
        time.sleep(0.03)

        if step % 100 == 99:
            if pending is not None:
                pending.result()
            state, optim = get_state_dict(model, opt)
            pending = dcp.async_save({"model": state, "optim": optim}, process_group=side,
                                     storage_writer=SlowShelf(args.ckpt / f"step{step}", 8.0))
            if rank == 0:
                print(f"step {step}: loss {loss.item() / scale:.3f}, checkpoint on its way", flush=True)

    pending.result()
    if rank == 0:
        print(f"finished, {skipped} steps skipped", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
