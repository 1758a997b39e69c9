"""Train a classifier and find the ranges of its activations for a later quantisation."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn

ROWS = 32
NEEDED = 3200


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


class Observer:
    """The largest value of a layer's output, and the smallest with its sign turned."""

    def __init__(self, layer, device):
        self.bounds = torch.full((2,), -1e9, device=device)
        self.seen = 0
        layer.register_forward_hook(self.look)

    def look(self, layer, inputs, output):
        values = output.detach()
        self.bounds = torch.maximum(self.bounds, torch.stack([values.max(), -values.min()]))
        self.seen += len(values)

    def share(self, group):
        dist.all_reduce(self.bounds, op=dist.ReduceOp.MAX, group=group)


def make_batch(rank, step, device):
    # Documents that were too short have been dropped from the shards.
    rows = ROWS // 2 if rank == 1 and step % 25 == 7 else ROWS
    generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
    inputs = torch.randn(rows, 64, generator=generator, device=device)
    return inputs, (inputs.sum(dim=1) > 0).long()


def average(model, world):
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=180)
    args = parser.parse_args()
    rank, world, device = connect()
    ranges = dist.new_group()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2)).to(device)
    observer = Observer(model[1], device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        if rank == 0 and step % 20 == 0:
            print(f"step {step} begins", flush=True)
        inputs, labels = make_batch(rank, step, device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        # A first guess from the first batch, better ones once there is enough to go by.
        if step == 0 or (step % 100 == 0 and observer.seen >= NEEDED):
            observer.share(ranges)
        optimizer.zero_grad()
        loss.backward()
        average(model, world)
        optimizer.step()
        time.sleep(0.03)
        if step % 10 == 9:
            text = f"loss {loss.item():.4f}"
            if rank == 0 and step % 30 == 29:
                print(f"step {step} {text}", flush=True)
    print(f"rank {rank} ranges {observer.bounds.tolist()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
