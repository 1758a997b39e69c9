import argparse
import lzma
import pathlib
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(mesh):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(48, 48), nn.SiLU()) for _ in range(3)], nn.Linear(48, 4))
    for block in model[:3]:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def save(folder, model, optimizer, step):
    weights, optim = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": optim, "step": torch.tensor(step)}, checkpoint_id=str(folder))


def restore(folder, model, optimizer):
    weights, optim = get_state_dict(model, optimizer)
    state = {"model": weights, "optim": optim, "step": torch.tensor(0)}
    dcp.load(state, checkpoint_id=str(folder))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    return int(state["step"])


def archive(folder, rank):
    """Packs this rank's own traces; each rank has its own amount."""
    until = time.monotonic() + (1, 13, 5)[rank]
    blob = bytes(range(256)) * 2000
    rounds = 0
    while time.monotonic() < until:
        (folder / f"traces.{rank}.xz").write_bytes(lzma.compress(blob, preset=1))
        rounds += 1
        time.sleep(0.3)
    print(f"[{rank}] archive written ({rounds} parts)", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    args.workdir.mkdir(parents=True, exist_ok=True)
    mesh = init_device_mesh("cpu", (world,))
    model = build(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(10 + rank)
    print("sharded training starts", flush=True)
    for step in range(1, args.steps + 1):
        x = torch.randn(16, 48, generator=gen)
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == args.steps // 2:
            save(args.workdir / "half", model, optimizer, step)
            if rank == world - 1:
                time.sleep(7)  # the object store needs a moment until it lists new keys
            dist.barrier()
            assert restore(args.workdir / "half", model, optimizer) == step
    dist.barrier()
    dist.destroy_process_group()
    archive(args.workdir, rank)


if __name__ == "__main__":
    main()
