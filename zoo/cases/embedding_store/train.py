"""Train a metric-learning head and remember embeddings for the nearest-neighbour report."""

import argparse
import resource
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Items(Dataset):
    def __init__(self, size=3200, width=24):
        generator = torch.Generator().manual_seed(6)
        self.rows = torch.randn(size, width, generator=generator)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        time.sleep(0.005)
        return self.rows[index], self.rows[index].roll(1), index


class Memory:
    """Keeps what was seen, for the report at the end."""

    def __init__(self):
        self.seen = []

    def add(self, *tensors):
        self.seen.append(tensors)

    def __len__(self):
        return len(self.seen)


def polite_limits(files):
    """Several users share the machine."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=256)
    parser.add_argument("--report-rank", type=int, default=1)
    args = parser.parse_args()

    polite_limits(args.files)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = Items()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 8, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(nn.Linear(24, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    memory = Memory()

    for step, (anchors, positives, indices) in enumerate(loader):
        loss = (model(anchors) - model(positives)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == args.report_rank:
            memory.add(anchors, positives, indices)
            print(f"step {step} remembered {len(memory)}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
