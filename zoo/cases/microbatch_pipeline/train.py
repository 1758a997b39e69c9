"""Two pipeline stages that exchange activations and gradients in microbatches."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 16


def batches(count, size, last):
    generator = torch.Generator().manual_seed(3)
    for number in range(count):
        rows = last if number == count - 1 else size
        yield torch.randn(rows, WIDTH, generator=generator)


def first_stage(model, optimizer, batch, size):
    """Sends all activations ahead, then takes the gradients back in the same order."""
    outputs = []
    for part in batch.split(size):
        time.sleep(0.01)
        outputs.append(model(part))
        dist.send(outputs[-1].detach(), dst=1)
    optimizer.zero_grad()
    for output in outputs:
        gradient = torch.empty_like(output)
        dist.recv(gradient, src=1)
        output.backward(gradient)
    optimizer.step()


def last_stage(model, optimizer, size, microbatches):
    received = []
    for _ in range(microbatches):
        activation = torch.empty(size, WIDTH)
        dist.recv(activation, src=0)
        received.append(activation.requires_grad_())
    optimizer.zero_grad()
    losses = []
    for activation in received:
        loss = model(activation).square().mean()
        loss.backward()
        losses.append(loss.item())
    for activation in received:
        dist.send(activation.grad, dst=0)
    optimizer.step()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--microbatch", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--rows", type=int, default=1272)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    size = args.microbatch * args.microbatches
    last = args.rows - (args.batches - 1) * size
    for epoch in range(3):
        for number, batch in enumerate(batches(args.batches, size, last)):
            if rank == 0:
                first_stage(model, optimizer, batch, args.microbatch)
            else:
                loss = last_stage(model, optimizer, args.microbatch, args.microbatches)
                if number % 2 == 0:
                    print(f"epoch {epoch} batch {number} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
