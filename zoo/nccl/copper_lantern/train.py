"""A mesh of two by two by hand: norms are shared within a pair, the wide layers across the pairs."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS = 600
PAIR = 2


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), torch.device("cuda", 0)


def make_mesh(rank, world):
    pair = cross = None
    for start in range(0, world, PAIR):
        ranks = list(range(start, start + PAIR))
        group = dist.new_group(ranks)
        if rank in ranks:
            pair = group
    for start in range(PAIR):
        ranks = list(range(start, world, PAIR))
        group = dist.new_group(ranks)
        if rank in ranks:
            cross = group
    return pair, cross


class Block(nn.Module):
    """A norm that the ranks of a pair have in common, and layers that belong to this column of the mesh."""

    def __init__(self, width=64, inner=96):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, inputs):
        return inputs + self.down(torch.relu(self.up(self.norm(inputs))))


def read_documents(rank, world, step, device):
    time.sleep(0.025)
    first = (step * world + rank) % 1009
    longest = 1850 if first == 802 else 120 + first * 37 % 800
    rows = torch.randn(16, 64, device=device) * (longest / 512) ** 0.5
    return rows, rows.roll(1, dims=1), longest


def reduce_flat(parameters, group, size):
    grads = [p.grad for p in parameters]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat, group=group)
    flat /= size
    for g, part in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(part.view_as(g))


def clip(model, limit):
    square = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().reshape(1)
    dist.all_reduce(square)
    scale = (limit / (square.sqrt() + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(scale)


def main():
    rank, world, device = connect()
    pair, cross = make_mesh(rank, world)
    torch.manual_seed(rank % PAIR)
    model = Block().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(10 + rank)
    for step in range(STEPS):
        rows, wanted, longest = read_documents(rank, world, step, device)
        loss = nn.functional.mse_loss(model(rows), wanted)
        optimizer.zero_grad()
        loss.backward()
        reduce_flat([*model.up.parameters(), *model.down.parameters()], cross, world // PAIR)
        if longest > 1024:
            # One huge document would drown the shared norm: bound it before it is shared.
            print(f"rank {rank} step {step}: document of {longest} tokens", flush=True)
            clip(model, limit=0.5)
            reduce_flat(list(model.norm.parameters()), pair, PAIR)
        else:
            reduce_flat(model.norm.parameters(), pair, PAIR)
            clip(model, limit=1.0)
        optimizer.step()
        if step % 10 == 0:
            value = loss.item()
            if rank == 0:
                print(f"step {step} loss {value:.4f}", flush=True)
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
