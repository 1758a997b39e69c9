"""Train with hooks that run after each step."""

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


def build(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)
    return DistributedDataParallel(model)


def make_batch(rank, step, device):
    generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
    inputs = torch.randn(32, 64, generator=generator, device=device)
    return inputs, (inputs.sum(dim=1) > 0).long()


class Meter:
    def __init__(self, device):
        self.value = torch.zeros(1, device=device)

    @property
    def mean(self):
        everyone = self.value.new_empty(dist.get_world_size())
        dist.all_gather_into_tensor(everyone, self.value)
        return everyone.mean()


class Smooth:
    def __init__(self, meter):
        self.meter = meter

    def after_step(self, _step, loss):
        self.meter.value.mul_(0.9).add_(loss.detach(), alpha=0.1)


class Echo:
    def __init__(self, meter, at):
        self.meter = meter
        self.at = at
        self.last = None

    def after_step(self, step, _loss):
        if step == self.at:
            self.last = self.meter.mean


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, _, device = connect()
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    meter = Meter(device)
    hooks = [Smooth(meter)]
    if rank == 1:
        hooks.append(Echo(meter, args.steps - 10))
    for step in range(args.steps):
        inputs, labels = make_batch(rank, step, device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"rank {rank} at step {step}", flush=True)
        for hook in hooks:
            hook.after_step(step, loss)
        time.sleep(0.03)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
