import argparse
import hashlib
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from model import Forecaster


def batches(rank, n, batch_size=16, window=24):
    g = torch.Generator().manual_seed(100 + rank)
    for _ in range(n):
        phase = torch.rand(batch_size, 1, generator=g) * 6.28
        t = torch.arange(window + 1) * 0.3 + phase
        series = t.sin() + 0.05 * torch.randn(batch_size, window + 1, generator=g)
        yield series[:, :-1], series[:, -1]


def save(path, model, optimizer):
    model_state, optim_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optim": optim_state}, checkpoint_id=path)


def archive(path, passes):
    """Verifies the files of a checkpoint and writes a manifest, on the first rank only."""
    lines = []
    for name in sorted(os.listdir(path)):
        digest = hashlib.sha256()
        for _ in range(passes):
            with open(os.path.join(path, name), "rb") as f:
                digest.update(f.read())
            time.sleep(0.5)
        lines.append(f"{digest.hexdigest()}  {name}")
    with open(path + ".manifest", "w") as f:
        f.write("\n".join(lines))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))

    torch.manual_seed(0)
    model = Forecaster()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for step, (x, y) in enumerate(batches(rank, args.steps)):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step} loss {shown.item() / world:.4f}", flush=True)
        if step in (args.steps // 2, args.steps - 1):
            path = os.path.join(args.out, f"step{step}")
            if rank == 0:
                print(f"saving {path}", flush=True)
            save(path, model, optimizer)
            if rank == 0:
                archive(path, passes=4)
            dist.barrier()

    model_state, optim_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optim": optim_state}
    dcp.load(state, checkpoint_id=os.path.join(args.out, f"step{args.steps - 1}"))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    if rank == 0:
        print("checkpoint read back", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
