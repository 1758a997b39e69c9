"""Train in two stages; the second resumes from the first one's best state, kept on every node."""

import argparse
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def local_path(root, rank):
    return Path(root) / f"node{rank}" / "best.pt"


def mirror(root, world):
    """Copies the best state from the first node to the other nodes."""
    source = local_path(root, 0)
    for node in range(1, world - 1):
        target = local_path(root, node)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def train(model, steps, rank, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        time.sleep(0.05)
        inputs = torch.randn(16, 8, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def resume(model, root, rank):
    path = local_path(root, rank)
    if path.exists():
        meta = [torch.load(path)["step"] if rank == 0 else None]
        dist.broadcast_object_list(meta, src=0)
        model.load_state_dict(torch.load(path)["model"])
        return meta[0]
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="nodes")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    first = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    loss = train(first, args.steps, rank, lr=0.1)
    if rank == 0:
        local_path(args.root, 0).parent.mkdir(parents=True, exist_ok=True)
        torch.save({"step": args.steps, "model": first.module.state_dict()}, local_path(args.root, 0))
        mirror(args.root, world)
        print(f"first stage done, loss {loss:.4f}", flush=True)
    dist.barrier()

    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    start = resume(model, args.root, rank)
    second = DistributedDataParallel(model)
    loss = train(second, 3 * args.steps - start, rank, lr=0.02)
    print(f"rank {rank} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
