import argparse
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

from helpers.log import get_logger


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        )
        self.head = nn.Linear(512, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--log-dir", default="logs")
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    log = get_logger(rank, args.log_dir)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(5120, 1, 28, 28), torch.randint(0, 10, (5120,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)
    model = DDP(ConvNet())
    opt = torch.optim.SGD(model.parameters(), 0.05)
    loss_fn = nn.CrossEntropyLoss()

    log.info("%d samples, %d ranks", len(data), dist.get_world_size())
    step, start = 0, time.time()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        bar = tqdm(loader, desc=f"epoch {epoch}", disable=rank != 0, mininterval=0.5)
        for x, y in bar:
            loss = loss_fn(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            log.info("step %d loss %.4f %.1f it/s", step, loss.item(), (step + 1) / (time.time() - start))
            sys.stdout.flush()
            step += 1
    log.info("training took %.1fs", time.time() - start)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
