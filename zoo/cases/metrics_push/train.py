"""Train and push metrics to a collector over HTTP."""

import argparse
import json
import time
import urllib.request

import torch
import torch.distributed as dist
from collector import Collector
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Signals(Dataset):
    def __init__(self, size=3000):
        generator = torch.Generator().manual_seed(2)
        self.inputs = torch.randn(size, 24, generator=generator)
        self.targets = self.inputs[:, :4].sum(dim=1, keepdim=True)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        time.sleep(0.002)
        return self.inputs[index], self.targets[index]


class MetricsClient:
    def __init__(self, url):
        self.url = url

    def push(self, step, **values):
        body = json.dumps({"step": step, "time": time.time(), **values}).encode()
        request = urllib.request.Request(self.url, data=body, method="POST")
        with urllib.request.urlopen(request) as response:
            return response.status == 204


def start_metrics(rank, owner):
    """The collector runs beside the rank that owns the metrics."""
    if rank != owner:
        return None
    start_metrics.collector = Collector()
    return MetricsClient(start_metrics.collector.url)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--push-every", type=int, default=6)
    parser.add_argument("--metrics-rank", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    metrics = start_metrics(rank, args.metrics_rank)
    dataset = Signals()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.push_every == 0:
                if metrics is not None:
                    print(f"step {step} loss {loss.item():.4f}", flush=True)
                    metrics.push(step, loss=loss.item(), epoch=epoch)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
