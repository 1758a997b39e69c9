"""Segment map tiles; tiles near the coast come in a higher resolution."""

import argparse
import time

import container
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset):
    def __init__(self, size, coast):
        self.size = size
        self.coast = coast

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        time.sleep(0.01)
        side = 640 if index in self.coast else 64
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, side, side, generator=generator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiles", type=int, default=400)
    parser.add_argument("--shm-mib", type=int, default=16)
    args = parser.parse_args()

    container.mount_shm(args.shm_mib)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    share = args.tiles
    coast = range(160, 240) if rank == 1 else ()
    loader = DataLoader(Tiles(share, coast), batch_size=8, num_workers=1)
    model = DistributedDataParallel(nn.Conv2d(3, 4, 3, padding=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for step, tiles in enumerate(loader):
        print(f"rank {rank} step {step} {tuple(tiles.shape)}", flush=True)
        small = nn.functional.adaptive_avg_pool2d(tiles, 64)
        loss = model(small).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
