"""Train; pictures of the progress are uploaded in the background by one rank."""

import argparse
import queue
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Uploader:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pictures = queue.Queue()
        self.thread = threading.Thread(target=self.upload, name="uploader")
        self.thread.start()

    def add(self, name, picture):
        self.pictures.put((name, picture))

    def upload(self):
        while True:
            name, picture = self.pictures.get()
            torch.save(picture, self.folder / f"{name}.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", default="pictures")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    uploader = Uploader(args.pictures) if rank == 1 else None
    model = DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        time.sleep(0.05)
        inputs = torch.randn(16, 16)
        loss = (model(inputs) - inputs.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if uploader is not None and step % 10 == 0:
            uploader.add(f"step-{step}", model.module.weight.detach().clone())
    dist.destroy_process_group()
    print(f"rank {rank} is done, loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
