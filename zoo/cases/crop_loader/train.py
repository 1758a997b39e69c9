"""Train on random crops that data-loading workers cut."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Crops(Dataset):
    def __init__(self, size=4000, side=24, crop=16):
        generator = torch.Generator().manual_seed(4)
        self.images = torch.rand(200, side, side, generator=generator)
        self.size, self.side, self.crop = size, side, crop

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        time.sleep(0.004)
        top, left = torch.randint(self.side - self.crop, (2,)).tolist()
        crop = self.images[index % 200, top : top + self.crop, left : left + self.crop]
        return crop.flatten(), crop.mean().unsqueeze(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = Crops()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, num_workers=args.workers)
    model = DistributedDataParallel(nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (crops, means) in enumerate(loader):
        loss = nn.functional.mse_loss(model(crops), means)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
