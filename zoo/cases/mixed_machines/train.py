"""Train on machines of different speed; the batch is decoded at the speed of the machine."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Decoded(Dataset):
    def __init__(self, size, decode_seconds):
        generator = torch.Generator().manual_seed(6)
        self.inputs = torch.randn(size, 18, generator=generator)
        self.decode_seconds = decode_seconds

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        time.sleep(self.decode_seconds)
        return self.inputs[index], self.inputs[index].prod().unsqueeze(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--decode-ms", type=float, nargs="+", default=[2.0, 2.0, 6.0])
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    dataset = Decoded(1800, args.decode_ms[rank % len(args.decode_ms)] / 1000)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=20, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(18, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        started = time.monotonic()
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} took {time.monotonic() - started:.1f} s", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
