"""Train a model whose layers live on different ranks, in micro-batches."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def first_stage(layer, rank, step, parts, device):
    outputs = []
    for part in range(parts):
        generator = torch.Generator(device=device).manual_seed(100 * step + part)
        outputs.append(torch.relu(layer(torch.randn(16, 64, generator=generator, device=device))))
        dist.send(outputs[-1].detach(), dst=rank + 1)
    for output in outputs:
        gradient = torch.empty_like(output)
        dist.recv(gradient, src=rank + 1)
        output.backward(gradient)


def middle_stage(layer, rank, parts, device):
    pairs = []
    for _ in range(parts):
        inputs = torch.empty(16, 64, device=device)
        dist.recv(inputs, src=rank - 1)
        inputs.requires_grad_()
        outputs = torch.relu(layer(inputs))
        dist.send(outputs.detach(), dst=rank + 1)
        pairs.append((inputs, outputs))
    for inputs, outputs in pairs:
        gradient = torch.empty_like(outputs)
        dist.recv(gradient, src=rank + 1)
        outputs.backward(gradient)
        dist.send(inputs.grad, dst=rank - 1)


def last_stage(layer, rank, parts, device):
    losses, kept = [], []
    for _ in range(parts):
        inputs = torch.empty(16, 64, device=device)
        dist.recv(inputs, src=rank - 1)
        inputs.requires_grad_()
        losses.append(layer(inputs).square().mean())
        kept.append(inputs)
    for inputs, loss in zip(kept, losses, strict=True):
        loss.backward()
        dist.send(inputs.grad, dst=rank - 1)
    return torch.stack([loss.detach() for loss in losses]).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--parts", type=int, default=4)
    args = parser.parse_args()
    rank, world, device = connect()
    torch.manual_seed(rank)
    layer = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    for step in range(args.steps):
        optimizer.zero_grad()
        if rank == 0:
            first_stage(layer, rank, step, args.parts, device)
        elif rank < world - 1:
            middle_stage(layer, rank, args.parts, device)
        else:
            value = last_stage(layer, rank, args.parts, device)
            if step % 20 == 0:
                print(f"step {step} loss {value:.5f}", flush=True)
        optimizer.step()
        time.sleep(0.03)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
