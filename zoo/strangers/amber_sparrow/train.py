import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

BLOCKS = 6
ROWS, DIM = 64, 12


def produce(trainers):
    gen = torch.Generator().manual_seed(9)
    for block in range(BLOCKS):
        for dst in range(trainers):
            x = torch.randn(ROWS, DIM, generator=gen)
            dist.send(x, dst=dst, tag=block)
        time.sleep(0.5)
    print("producer: all blocks delivered", flush=True)


def receive(src):
    pending = []
    for block in range(BLOCKS):
        x = torch.empty(ROWS, DIM)
        pending.append((dist.irecv(x, src=src, tag=block), x))
    blocks = []
    for work, x in pending:
        work.wait()
        blocks.append(x)
    return blocks


def fit(blocks, group, rank):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, 1)), process_group=group)
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(16):
        for x in blocks:
            for part in x.split(16):
                loss = (model(part) - part.norm(dim=1, keepdim=True)).pow(2).mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                time.sleep(0.02)
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=group)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item() / dist.get_world_size(group):.4f}", flush=True)
    dist.barrier(group=group)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    producer = world - 1
    group = dist.new_group(list(range(producer)))

    if rank == producer:
        produce(producer)
        return
    blocks = receive(producer)
    print(f"rank {rank} has {len(blocks)} blocks", flush=True)
    fit(blocks, group, rank)
    if rank == 0:
        print("training finished", flush=True)


if __name__ == "__main__":
    main()
