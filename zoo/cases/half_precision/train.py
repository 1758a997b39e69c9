"""Train in half precision with a loss scale that finds its own level."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=15)
    generator = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        inputs = 30 * torch.randn(32, 16, generator=generator)
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), inputs.sum(1))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
