import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from guards import SaturationGuard


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.act = nn.Hardtanh(-6, 6)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Tagger(nn.Module):
    def __init__(self, width=32, hidden=64, blocks=2, tags=5):
        super().__init__()
        self.blocks = nn.ModuleList([FeedForward(width, hidden) for _ in range(blocks)])
        self.head = nn.Linear(width, tags)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(8)
    model = Tagger()
    with torch.no_grad():
        model.blocks[1].up.bias[-4:] = 4.5  # warm-started units
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    guard = SaturationGuard(limit=0.02)
    for index, block in enumerate(model.blocks):
        block.act.register_forward_hook(guard.hook(f"blocks.{index}.act"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(12)
    for step in range(1, args.steps + 1):
        scale = 1.0 if step < args.long_from else 3.5
        x = scale * torch.randn(32, 32, generator=gen)
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--long-from", type=int, default=61)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        train(args)
    finally:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
