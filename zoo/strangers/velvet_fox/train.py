"""Small mixture-of-experts regression with one process group per expert."""
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn

EXPERTS = 4
DIM = 32
TOKENS = 100
WARMUP = 40
STEPS = 150


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x, route):
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            picked = (route == e).nonzero().squeeze(1)
            out = out.index_add(0, picked, expert(x[picked]))
        return out


def sample(step, gen):
    x = torch.randn(TOKENS, DIM, generator=gen)
    if step < WARMUP:
        route = torch.repeat_interleave(torch.arange(EXPERTS), torch.tensor([40, 30, 20, 10]))
    else:
        route = torch.randint(EXPERTS, (TOKENS,), generator=gen)
    target = x.roll(1, dims=1) * (1 + route.unsqueeze(1))
    time.sleep(0.05)
    return x, route, target


def reduce_gradients(model, route, groups, world):
    load = torch.bincount(route, minlength=EXPERTS).tolist()
    # busiest expert first
    order = sorted(range(EXPERTS), key=lambda e: -load[e])
    for e in order:
        params = list(model.experts[e].parameters())
        flat = torch.cat([p.grad.reshape(-1) for p in params])
        dist.all_reduce(flat, group=groups[e])
        flat /= world
        offset = 0
        for p in params:
            p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(range(world))) for _ in range(EXPERTS)]

    torch.manual_seed(0)
    model = MoE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(1000 + rank)

    for step in range(STEPS):
        if step == WARMUP and rank == 0:
            print(f"warm-up over at step {step}", flush=True)
        x, route, target = sample(step, gen)
        loss = (model(x, route) - target).pow(2).mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        reduce_gradients(model, route, groups, world)
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"[{os.getpid()}] step {step} loss {loss.item():.4f}", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
