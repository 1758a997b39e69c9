"""Estimate scene flow between point clouds; training refuses to go on with a loss that is not a number."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Clouds(Dataset):
    def __init__(self, size=3000, points=16):
        generator = torch.Generator().manual_seed(3)
        self.points = torch.randn(size, points, 3, generator=generator)
        self.points[1711] = 0.0  # a frame of the sensor's warm-up

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        cloud = self.points[index]
        return cloud / cloud.norm(), cloud.roll(1, 0)


class FlowNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, cloud):
        return self.layers(cloud)


def check_loss(loss, step):
    if not torch.isfinite(loss):
        raise FloatingPointError(f"loss is {loss.item()} in step {step}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=24)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    dataset = Clouds()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = DistributedDataParallel(FlowNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    step = 0
    for epoch in range(args.epochs):
        for clouds, flows in loader:
            time.sleep(0.05)
            loss = nn.functional.smooth_l1_loss(model(clouds), flows)
            print(f"rank {rank} step {step}", flush=True)
            check_loss(loss, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
