import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def make_model(width=28):
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 2))


def spread(model):
    """How far this replica is from the mean of all, for the log."""
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    mean = flat.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    return (flat - mean).norm().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--local-from", type=int, default=30)
    parser.add_argument("--period", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    own, _ = dist.new_subgroups(group_size=1)
    model = DDP(make_model())
    model.register_comm_hook(PostLocalSGDState(None, own, start_localSGD_iter=args.local_from), post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        optim=torch.optim.SGD(model.parameters(), lr=0.05),
        averager=PeriodicModelAverager(period=args.period, warmup_steps=args.local_from),
    )
    torch.manual_seed(900 + rank)
    shift = rank / world
    for step in range(1, args.steps + 1):
        x = torch.randn(32, 28) + shift
        y = (x[:, 0] > shift).long()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.04 + 0.02 * rank)
        if step == args.local_from and rank == 0:
            print(f"step {step}: local steps from here, averaging every {args.period}", flush=True)
        if step % 40 == 0:
            distance = spread(model)
            print(f"[{rank}] step {step} loss {loss.item():.3f} distance to mean {distance:.4f}", flush=True)
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= world
    print(f"[{rank}] final distance {spread(model):.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
