"""Click-through model on daily counters."""
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class DailyCounters(Dataset):
    def __init__(self, rank, rows=960):
        g = torch.Generator().manual_seed(50 + rank)
        self.views = torch.randint(20, 400, (rows,), generator=g).float()
        self.clicks = (self.views * torch.rand(rows, generator=g)).round()
        self.other = torch.randn(rows, 6, generator=g)
        if rank == 1:
            self.views[613] = 0.0
            self.clicks[613] = 2.0

    def __len__(self):
        return len(self.views)

    def __getitem__(self, i):
        return self.views[i], self.clicks[i], self.other[i]


def make_features(views, clicks, other):
    ctr = clicks / views
    return torch.cat([ctr[:, None], torch.log1p(views)[:, None], other], dim=1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(DailyCounters(rank), batch_size=16)

    for step, (views, clicks, other) in enumerate(loader):
        x = make_features(views, clicks, other)
        target = (other[:, :1] > 0).float()
        logits = model(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.08)
        if rank == 0 and step % 4 == 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
