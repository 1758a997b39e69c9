"""2-D parallel training (FSDP2 over 'dp', tensor parallel over 'tp') with distributed checkpoints and a resume check."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Layer(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.w1, self.w2 = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def forward(self, x):
        return x + self.w2(torch.nn.functional.silu(self.w1(x)))


def build(mesh):
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), Layer(), nn.Linear(32, 1))
    for layer in model[:2]:
        parallelize_module(layer, mesh["tp"], {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model, torch.optim.AdamW(model.parameters(), lr=2e-3)


def batch(replica, step):
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(step * 10 + replica))
    return x, x[:, :5].prod(1, keepdim=True).tanh()


def run(model, opt, mesh, first, last, report):
    dp = mesh["dp"]
    leaders = mesh["tp"].get_local_rank() == 0
    for step in range(first, last + 1):
        x, y = batch(dp.get_local_rank(), step)
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        if leaders and step % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, group=dp.get_group())
            if report:
                print(f"step {step} loss {mean.item() / dp.size():.4f}", flush=True)


def save(folder, model, opt):
    m, o = get_state_dict(model, opt)
    return dcp.async_save({"model": m, "opt": o}, checkpoint_id=folder)


def load(folder, model, opt):
    m, o = get_state_dict(model, opt)
    state = {"model": m, "opt": o}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["opt"])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    folder = os.path.join(sys.argv[1], "ckpt")
    model, opt = build(mesh)
    run(model, opt, mesh, 1, 40, rank == 0)
    pending = save(folder, model, opt)
    pending.result()
    if rank == 0:
        print("checkpoint written, going on", flush=True)
    run(model, opt, mesh, 41, 60, rank == 0)
    reference = [p.full_tensor().clone() for p in model.parameters()]

    model, opt = build(mesh)
    load(folder, model, opt)
    run(model, opt, mesh, 41, 60, rank == 0)
    delta = max((a - p.full_tensor()).abs().max().item() for a, p in zip(reference, model.parameters()))
    if rank == 0:
        print(f"largest difference after resuming {delta:.2e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
