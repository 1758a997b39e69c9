"""Classify slices of volumes that are unpacked into shared memory before use."""

import argparse
import mmap
import os
import time

import container
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    """Unpacks each volume once into /dev/shm and hands out its slices."""

    def __init__(self, size, depth):
        self.size = size
        self.depth = depth

    def __len__(self):
        return self.size

    def unpack(self, index):
        length = self.depth * 64 * 64
        path = f"/dev/shm/volume-{os.getpid()}-{index}"
        with open(path, "w+b") as file:
            file.truncate(length)
            volume = mmap.mmap(file.fileno(), length)
        for start in range(0, length, 4096):
            volume[start] = (index + start // 4096) % 251
        return volume

    def __getitem__(self, index):
        time.sleep(0.01)
        volume = self.unpack(index)
        pixels = torch.frombuffer(bytearray(volume[:4096]), dtype=torch.uint8).float() / 255
        return pixels, pixels.mean().unsqueeze(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--volumes", type=int, default=600)
    parser.add_argument("--shm-mib", type=int, default=24)
    args = parser.parse_args()

    container.mount_shm(args.shm_mib)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    depth = 16 if rank == 1 else 4
    loader = DataLoader(Volumes(args.volumes, depth), batch_size=8, num_workers=1)
    model = DistributedDataParallel(nn.Linear(4096, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    for step, (pixels, targets) in enumerate(loader):
        print(f"rank {rank} step {step}", flush=True)
        loss = nn.functional.mse_loss(model(pixels), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
