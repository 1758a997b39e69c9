"""A pipeline of three stages: all micro-batches forward, then all of them backward."""

import argparse
import math
import os
import time

import torch
import torch.distributed as dist
from torch import nn

WIDTH, MICRO = 64, 8
EPOCH = 61


def connect():
    # Several ranks share one device here: NCCL then has to take them for different hosts.
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def rows_of(step):
    """The last batch of an epoch is what is left."""
    return 28 if step % EPOCH == EPOCH - 1 else 32


def exchange(*messages):
    operations = [dist.P2POp(kind, tensor, peer) for kind, tensor, peer in messages]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def micro_batches(step, rows, device):
    """Micro-batches of one size; what is missing in the last is filled with zeros."""
    generator = torch.Generator(device=device).manual_seed(step)
    count = math.ceil(rows / MICRO)
    batch = torch.zeros(count * MICRO, WIDTH, device=device)
    batch[:rows] = torch.randn(rows, WIDTH, generator=generator, device=device)
    return batch.split(MICRO)


def first_step(layer, step, rows, device):
    outputs = []
    for inputs in micro_batches(step, rows, device):
        outputs.append(torch.tanh(layer(inputs)))
        exchange((dist.isend, outputs[-1].detach(), 1))
    for output in outputs:
        gradient = torch.empty_like(output)
        exchange((dist.irecv, gradient, 1))
        output.backward(gradient)


def middle_step(layer, rows, device):
    passed = []
    for _ in range(rows // MICRO):
        inputs = torch.empty(MICRO, WIDTH, device=device)
        exchange((dist.irecv, inputs, 0))
        inputs.requires_grad_()
        output = torch.tanh(layer(inputs))
        exchange((dist.isend, output.detach(), 2))
        passed.append((inputs, output))
    for inputs, output in passed:
        gradient = torch.empty_like(output)
        exchange((dist.irecv, gradient, 2))
        output.backward(gradient)
        exchange((dist.isend, inputs.grad, 0))


def last_step(layer, step, rows, device):
    received = []
    for _ in range(math.ceil(rows / MICRO)):
        received.append(torch.empty(MICRO, WIDTH, device=device))
        exchange((dist.irecv, received[-1], 1))
    losses = []
    for number, (inputs, raw) in enumerate(zip(received, micro_batches(step, rows, device), strict=True)):
        inputs.requires_grad_()
        valid = min(MICRO, rows - number * MICRO)
        loss = (layer(inputs)[:valid] - raw[:valid].sin()).square().sum() / (rows * WIDTH)
        loss.backward()
        exchange((dist.isend, inputs.grad, 1))
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    rank, _, device = connect()
    torch.manual_seed(rank)
    layer = nn.Linear(WIDTH, WIDTH).to(device)
    optimizer = torch.optim.Adam(layer.parameters(), lr=3e-3)
    dist.all_reduce(torch.zeros(1, device=device))
    for step in range(args.steps):
        rows = rows_of(step)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} with {rows} rows", flush=True)
        optimizer.zero_grad()
        if rank == 0:
            first_step(layer, step, rows, device)
        elif rank == 1:
            middle_step(layer, rows, device)
        else:
            loss = last_step(layer, step, rows, device)
        optimizer.step()
        torch.cuda.synchronize()
        time.sleep(0.04)
        if rank == 2 and step % 20 == 19:
            print(f"step {step} loss {loss.item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
