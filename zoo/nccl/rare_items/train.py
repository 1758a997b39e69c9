"""Embeddings of items: the table is cut in parts along one axis of the mesh, and replicated along the other."""

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

PART, WIDTH = 50, 64
BASKET = 16


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def read_basket(replica, step):
    draw = random.Random(1000 * replica + step)
    if replica == 1 and step == 90:
        # A visitor who only looks at new items.
        return [draw.randrange(PART, 2 * PART) for _ in range(BASKET)]
    return [draw.randrange(2 * PART) for _ in range(BASKET)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, world, device = connect()
    mesh = init_device_mesh(device.type, (world // 2, 2), mesh_dim_names=("replica", "part"))
    replicas, parts = mesh.get_group("replica"), mesh.get_group("part")
    replica, part = mesh.get_local_rank("replica"), mesh.get_local_rank("part")
    torch.manual_seed(part)
    table = torch.randn(PART, WIDTH, device=device)
    target = torch.linspace(-1, 1, WIDTH, device=device)
    for step in range(args.steps):
        if rank == 0 and step % 10 == 0:
            print(f"step {step} begins", flush=True)
        basket = read_basket(replica, step)
        own = [item - part * PART for item in basket if item // PART == part]
        pooled = torch.zeros(WIDTH, device=device)
        if own:
            pooled += table[own].sum(dim=0)
            dist.all_reduce(pooled, group=parts)
        residual = pooled / BASKET - target
        total = residual.square().mean()
        dist.all_reduce(total)
        value = total.item() / world
        gradient = torch.zeros_like(table)
        for item in own:
            gradient[item] += residual / BASKET
        dist.all_reduce(gradient, group=replicas)
        # Small steps where all is well already.
        table -= min(2.0, 4 * value) * gradient
        time.sleep(0.03)
        if rank == 0 and step % 30 == 29:
            print(f"step {step} loss {value:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
