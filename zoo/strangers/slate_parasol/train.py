"""Mixture-of-experts for parcel routing on a (data, expert) mesh with separate gradient buckets."""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

DIM, ROWS = 24, 64
STEPS = 120


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Router(nn.Module):
    def __init__(self, n_experts=2):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))
        self.gate = nn.Linear(DIM, n_experts)
        self.experts = nn.ModuleList(Expert() for _ in range(n_experts))
        self.head = nn.Linear(DIM, 1)

    def forward(self, x, express):
        h = self.stem(x)
        mix = torch.softmax(self.gate(h), dim=-1) * express.unsqueeze(1)
        return self.head(h + sum(mix[:, i : i + 1] * e(h) for i, e in enumerate(self.experts)))


class Buckets:
    """One bucket per process group; the one with more work behind it goes first."""

    def __init__(self, model, mesh):
        self.groups = {"dense": dist.group.WORLD, "expert": mesh["data"].get_group()}
        self.params = {"dense": [], "expert": []}
        for name, p in model.named_parameters():
            self.params["expert" if "experts" in name else "dense"].append(p)

    def flush(self, rows):
        for name in sorted(rows, key=rows.get, reverse=True):
            params = self.params[name]
            buf = torch.cat([p.grad.flatten() for p in params])
            dist.all_reduce(buf, group=self.groups[name])
            buf /= dist.get_world_size(self.groups[name])
            for p, g in zip(params, buf.split([p.numel() for p in params])):
                p.grad.copy_(g.view_as(p))


class Depot:
    """Parcels of one depot; express parcels take the way through the experts."""

    def __init__(self, index):
        self.index = index
        self.gen = torch.Generator().manual_seed(index)

    def parcels(self, day):
        share = 0.9 if self.index == 2 and day % 50 == 36 else 0.15
        x = torch.randn(ROWS, DIM, generator=self.gen)
        express = torch.rand(ROWS, generator=self.gen) < share
        return x, x.sum(-1, keepdim=True).tanh(), express


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "expert"))
    torch.manual_seed(10)
    model = Router()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    buckets = Buckets(model, mesh)
    depot = Depot(rank)
    for step in range(STEPS):
        x, y, express = depot.parcels(step)
        loss = nn.functional.mse_loss(model(x, express), y)
        opt.zero_grad()
        loss.backward()
        if step % 12 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        n = int(express.sum())
        buckets.flush({"dense": ROWS - n, "expert": n})
        opt.step()
        time.sleep(0.06)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
