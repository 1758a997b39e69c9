"""Domain-decomposed 1-D field, periodic: every rank shares an edge with each of its neighbours."""
import time

import torch
import torch.distributed as dist
import torch.nn as nn

CELLS = 64
SYNC_EVERY = 30


def edge_groups(world):
    """One group per edge: edge i joins rank i and rank i + 1."""
    return [dist.new_group(sorted({i, (i + 1) % world})) for i in range(world)]


class Field:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        g = torch.Generator().manual_seed(rank)
        self.values = torch.randn(CELLS, generator=g)
        self.edges = edge_groups(world)

    def relax(self):
        v = self.values
        v[1:-1] = 0.5 * v[1:-1] + 0.25 * (v[:-2] + v[2:])

    def sync_edges(self):
        right = self.edges[self.rank]
        left = self.edges[(self.rank - 1) % self.world]
        for group, cell in ((right, -1), (left, 0)):
            ghost = self.values[cell].clone().reshape(1)
            dist.all_reduce(ghost, group=group)
            self.values[cell] = ghost.item() / 2


def fit_step(model, opt, field):
    x = field.values.reshape(8, 8)
    loss = (model(x) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= field.world
    opt.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    field = Field(rank, world)
    for step in range(1, 121):
        field.relax()
        loss = fit_step(model, opt, field)
        time.sleep(0.08)
        if step % SYNC_EVERY == 0:
            if rank == 0:
                print(f"step {step} loss {loss:.5f}", flush=True)
            field.sync_edges()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
