"""Ship route model: hybrid sharding on a 2-D mesh with asynchronous checkpoints."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.a, self.b = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.norm(x))))


class Routes(nn.Module):
    def __init__(self, dim=32, depth=3):
        super().__init__()
        self.inp = nn.Linear(6, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.out = nn.Linear(dim, 2)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def build(mesh):
    torch.manual_seed(3)
    model = Routes()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def mean_over(value, group):
    value = value.detach().clone()
    dist.all_reduce(value, group=group)
    return value / dist.get_world_size(group)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    out = ap.parse_args().out
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    files = dist.new_group(backend="gloo")
    model = build(mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank)

    saving = None
    for step in range(1, 61):
        x = torch.randn(16, 6, generator=gen)
        y = torch.stack([x[:, 0] * x[:, 1], x[:, 2:4].sum(1)], dim=1)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        time.sleep(0.02)
        if step % 20 == 0:
            shown = mean_over(loss, mesh["replicate"].get_group())
            if rank == 0:
                print(f"step {step} loss {shown.item():.4f}", flush=True)
            if saving is not None:
                saving.result()
            saving = dcp.async_save(
                {"model": get_model_state_dict(model)},
                checkpoint_id=os.path.join(out, f"step{step}"),
                process_group=files,
            )
    saving.result()

    before = mean_over(sum(p.to_local().abs().sum() for p in model.parameters()), dist.group.WORLD)
    fresh = build(mesh)
    state = {"model": get_model_state_dict(fresh)}
    dcp.load(state, checkpoint_id=os.path.join(out, "step60"))
    set_model_state_dict(fresh, state["model"])
    after = mean_over(sum(p.to_local().abs().sum() for p in fresh.parameters()), dist.group.WORLD)
    if rank == 0:
        print(f"restored, difference {abs(before - after).item():.2e}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
