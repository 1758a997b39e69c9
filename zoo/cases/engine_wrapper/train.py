"""Pre-train a toy model through a small training engine."""

import argparse
import time

import torch
import torch.distributed as dist
from engine import Engine
from torch import nn


def make_batch(generator):
    inputs = torch.randn(12, 16, generator=generator)
    return inputs, inputs.roll(1, dims=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-dir", default="checkpoints")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-interval", type=int, default=35)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    engine = Engine(model, lr=3e-3, accumulation=1)
    generator = torch.Generator().manual_seed(dist.get_rank())

    for step in range(1, args.steps + 1):
        time.sleep(0.05)
        inputs, targets = make_batch(generator)
        loss = nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % args.save_interval == 0 and dist.get_rank() == 0:
            engine.save_checkpoint(args.save_dir, tag=f"step{step}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
