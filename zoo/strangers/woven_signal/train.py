import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tracking import Tracker


class FeedForward(nn.Module):
    def __init__(self, dim=64, hidden=256, classes=10):
        super().__init__()
        self.inp = nn.Linear(dim, dim)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = torch.relu(self.inp(x))
        x = x + self.down(F.gelu(self.up(x)))
        return self.head(x)


def average_grads(model, group, size):
    for p in model.parameters():
        if p.grad is None:
            continue
        g = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
        dist.all_reduce(g, group=group)
        g.div_(size)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tracker = Tracker("ffn-2d", enabled=rank == 0)
    torch.manual_seed(0)
    model = FeedForward()
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    opt = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    gen = torch.Generator().manual_seed(11 + mesh["dp"].get_local_rank())
    proto = torch.randn(10, 64, generator=torch.Generator().manual_seed(1))
    for step in range(1, 121):
        y = torch.randint(0, 10, (32,), generator=gen)
        x = proto[y] + 0.5 * torch.randn(32, 64, generator=gen)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        average_grads(model, mesh["dp"].get_group(), 2)
        opt.step()
        time.sleep(0.05)
        if step % 5 == 0:
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            tracker.log(step, loss=loss.item())
    dist.barrier()
    tracker.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
