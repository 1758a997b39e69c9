"""Train with DDP and keep an eye on the gradients that flow between the layers."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LIMIT = 100.0


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


class Block(nn.Module):
    def __init__(self, width, name):
        super().__init__()
        self.name = name
        self.inner = nn.Linear(width, width)

    def watch(self, gradient):
        size = gradient.norm().item()
        if size > LIMIT:
            raise ValueError(f"the gradient behind {self.name} is {size:.1f}, the limit is {LIMIT}")
        return gradient

    def forward(self, inputs):
        outputs = inputs + torch.relu(self.inner(inputs))
        if outputs.requires_grad:
            outputs.register_hook(self.watch)
        return outputs


class Model(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, f"block {number}") for number in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs).squeeze(1)


def make_batch(rank, step, width, device):
    generator = torch.Generator(device=device).manual_seed(1000 * rank + step)
    inputs = torch.randn(32, width, generator=generator, device=device)
    targets = inputs.mean(dim=1)
    if rank == 2 and step == 60:
        # One price was entered in cents.
        targets[7] *= 1e7
    return inputs, targets


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    rank, _, device = connect()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        Model(args.width, 4).to(device), device_ids=[device.index], bucket_cap_mb=0.3
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(args.steps):
        if rank == 0 and step % 20 == 0:
            print(f"step {step} begins", flush=True)
        inputs, targets = make_batch(rank, step, args.width, device)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        time.sleep(0.04)
        if rank == 0 and step % 20 == 19:
            print(f"step {step} loss {value:.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
