import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F


class MLP(nn.Module):
    def __init__(self, dim=64, hidden=256):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, dim=64, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList(MLP(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).squeeze(-1)


def local(t):
    return t.to_local() if hasattr(t, "to_local") else t


def average_gradients(model, group):
    size = dist.get_world_size(group)
    for p in model.parameters():
        g = local(p.grad)
        dist.all_reduce(g, group=group)
        g.div_(size)


def weight_norm(model, group):
    total = torch.zeros(())
    for block in model.blocks:
        total += local(block.up.weight.detach()).pow(2).sum()
    dist.all_reduce(total, group=group)
    return total.sqrt().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dir", default="ckpt")
    ap.add_argument("--steps", type=int, default=120)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"], mesh["tp"]
    torch.manual_seed(0)
    model = Net()
    for block in model.blocks:
        parallelize_module(block, tp, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    opt = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    gen = torch.Generator().manual_seed(dp.get_local_rank())
    pending = None
    for step in range(1, args.steps + 1):
        x = torch.randn(16, 64, generator=gen)
        loss = F.mse_loss(model(x), torch.sin(x[:, 0]))
        opt.zero_grad()
        loss.backward()
        average_gradients(model, dp.get_group())
        opt.step()
        if dp.get_local_rank() == 0 and step % 10 == 0:
            norm = weight_norm(model, tp.get_group())
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} |w| {norm:.3f}", flush=True)
        if step == args.steps // 2:
            pending = dcp.async_save({"model": model.state_dict()}, checkpoint_id=Path(args.dir) / "mid",
                                     process_group=dist.new_group(backend="gloo"))
            if rank == 0:
                print("checkpoint started", flush=True)

    pending.result()
    before = local(model.blocks[0].up.weight).clone()
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=Path(args.dir) / "mid")
    model.load_state_dict(state["model"])
    moved = (local(model.blocks[0].up.weight) - before).abs().max()
    dist.all_reduce(moved, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"restored the middle of the run, largest change {moved.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
