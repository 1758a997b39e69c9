"""Hybrid-sharded training over a list of data parts, dealt out to the ranks in turn."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=1312, help="samples in the whole data set")
    parser.add_argument("--part-samples", type=int, default=112)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def setup():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Network(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.embed = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, width)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(args, world, device):
    torch.manual_seed(1)
    network = Network(args.width, args.blocks).to(device)
    mesh = init_device_mesh(device.type, (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    for block in network.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return network, torch.optim.AdamW(network.parameters(), lr=args.lr)


class Part:
    """A slice of the data set as it lies on disk."""

    def __init__(self, index, args, device):
        self.index, self.args, self.device = index, args, device
        self.first = index * args.part_samples
        self.last = min(self.first + args.part_samples, args.samples)
        self.noise = torch.Generator(device=device).manual_seed(index)

    def batches(self):
        for start in range(self.first, self.last, self.args.batch):
            size = min(self.args.batch, self.last - start)
            x = torch.randn(size, self.args.width, device=self.device, generator=self.noise)
            yield x, x.roll(1, dims=1)


def assigned(args, rank, world, device):
    count = -(-args.samples // args.part_samples)
    return [Part(index, args, device) for index in range(rank, count, world)]


def train_part(network, optimizer, part, rank):
    total = torch.zeros(2, device=part.device)
    for x, y in part.batches():
        loss = nn.functional.mse_loss(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += torch.stack([loss.detach() * len(x), torch.full_like(loss, float(len(x)))])
        value = loss.item()
        time.sleep(0.04)
    print(f"rank {rank} part {part.index:02d} read, loss {value:.4f}", flush=True)
    return total


def main():
    args = parse_args()
    rank, world, device = setup()
    network, optimizer = build(args, world, device)
    dist.barrier()
    for turn, part in enumerate(assigned(args, rank, world, device)):
        print(f"rank {rank} turn {turn} opens part {part.index:02d}", flush=True)
        total = train_part(network, optimizer, part, rank)
        dist.all_reduce(total)
        mean = (total[0] / total[1]).item()
        if rank == 0:
            print(f"turn {turn} mean loss {mean:.4f} over {int(total[1].item())} samples", flush=True)
    dist.barrier()
    print(f"rank {rank} finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
