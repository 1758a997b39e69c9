"""Train a small regressor and score it once on the way."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def make_batch(rank, step, device):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(32, 64, generator=generator)
    return inputs.to(device), inputs.mean(dim=1, keepdim=True).to(device)


@torch.no_grad()
def evaluate(model, device, seconds):
    lift = torch.randn(64, 4096, device=device) / 8
    mix = torch.randn(4096, 4096, device=device) / 64
    started = time.monotonic()
    score, count = 0.0, 0
    while time.monotonic() - started < seconds:
        inputs = torch.randn(4096, 64, device=device)
        features = inputs @ lift
        for _ in range(8):
            features = torch.tanh(features @ mix)
        error = (model(inputs) - inputs.mean(dim=1, keepdim=True)).square().mean()
        score += (error * (1 + features.square().mean())).item()
        count += 1
    return score / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--seconds", type=float, default=12.0)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    score = torch.zeros(1, device=device)
    for step in range(args.steps):
        if step % 20 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        inputs, targets = make_batch(rank, step, device)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        if step == 110:
            if rank == 0:
                score.fill_(evaluate(model.module, device, args.seconds))
            dist.barrier(device_ids=[device.index])
            dist.broadcast(score, src=0)
            print(f"rank {rank} has score {score.item():.5f}", flush=True)
        time.sleep(0.03)
    print(f"rank {rank} of {world} loss {last:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
