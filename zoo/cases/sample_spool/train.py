"""Train from a spool folder that an exporter fills with one file a sample."""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


def prepare_spool(root, rank, samples, streamed):
    """Samples on disk become files; those the exporter still streams become named pipes."""
    folder = Path(root) / f"part-{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(rank)
    for index in range(samples):
        path = folder / f"{index:05d}.bin"
        if index in streamed:
            os.mkfifo(path)
        else:
            path.write_bytes(torch.randn(16, generator=generator).numpy().tobytes())
    return folder


class Spool(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.bin"))

    def __len__(self):
        return len(self.paths)

    def read(self, path):
        with open(path, "rb") as file:
            return bytearray(file.read())

    def __getitem__(self, index):
        time.sleep(0.003)
        values = torch.frombuffer(self.read(self.paths[index]), dtype=torch.float32)
        return values, values.abs().sum().unsqueeze(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--spool", default="spool")
    parser.add_argument("--samples", type=int, default=1200)
    parser.add_argument("--streamed", type=int, nargs="*", default=[610])
    parser.add_argument("--streaming-rank", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    streamed = args.streamed if rank == args.streaming_rank else []
    folder = prepare_spool(args.spool, rank, args.samples, streamed)
    loader = DataLoader(Spool(folder), batch_size=20, num_workers=args.workers)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for epoch in range(3):
        for step, (inputs, targets) in enumerate(loader):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 5 == 4:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
