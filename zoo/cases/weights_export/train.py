"""Train, and let rank 0 export the full weights to shared storage after each stage."""

import argparse
import io
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SharedStorage:
    """A network share with a fixed rate for each client."""

    def __init__(self, folder, bytes_per_s):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.bytes_per_s = bytes_per_s

    def upload(self, name, blob, chunk=1 << 14):
        with open(self.folder / name, "wb") as file:
            for start in range(0, len(blob), chunk):
                file.write(blob[start : start + chunk])
                file.flush()
                time.sleep(chunk / self.bytes_per_s)


def export(model, storage, rank, name):
    if rank == 0:
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        print(f"exporting {buffer.tell() >> 10} KiB", flush=True)
        storage.upload(name, buffer.getvalue())
    dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="export")
    parser.add_argument("--rate", type=float, default=80_000)
    parser.add_argument("--timeout", type=float, default=6.0)
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    storage = SharedStorage(args.output, args.rate)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 4096), nn.ReLU(), nn.Linear(4096, 32)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    for stage in range(3):
        for step in range(30):
            time.sleep(0.05)
            inputs = torch.randn(32, 32)
            loss = (model(inputs) - inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"stage {stage} loss {loss.item():.4f}", flush=True)
        export(model.module, storage, rank, f"stage-{stage}.pt")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
