"""Gait classification from wearable sensors: every rank holds its own clinics, and clinics have different numbers of recordings."""
import os; os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])  # several ranks share one device
import os
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Config:
    epochs: int = 3
    window: int = 32
    channels: int = 6
    classes: int = 4
    lr: float = 0.01
    recordings: list = field(default_factory=lambda: [35, 80, 55, 40])


class GaitNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.conv = nn.Conv1d(cfg.channels, 12, 5, stride=2)
        self.head = nn.Linear(12, cfg.classes)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean(-1))


class Clinic:
    def __init__(self, cfg, rank, epoch):
        self.cfg, self.n = cfg, cfg.recordings[rank]
        self.gen = torch.Generator().manual_seed(1000 * epoch + rank)

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            y = torch.randint(self.cfg.classes, (8,), generator=self.gen)
            x = torch.randn(8, self.cfg.channels, self.cfg.window, generator=self.gen)
            x[:, 0] += y[:, None].float()
            time.sleep(0.03)
            yield x, y


def exchange_prototypes(proto, rank, world, device):
    """Hand the class prototypes once around; only ranks that saw enough data send something new."""
    inbox = torch.empty_like(proto)
    right, left = (rank + 1) % world, (rank - 1) % world
    send = dist.P2POp(dist.isend, proto.contiguous(), right)
    recv = dist.P2POp(dist.irecv, inbox, left)
    ops = [send, recv] if rank % 2 == 0 else [recv, send]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return 0.5 * (proto + inbox)


def train_epoch(model, opt, cfg, rank, epoch, device):
    steps, dropped = 0, 0
    proto = torch.zeros(cfg.classes, cfg.channels, device=device)
    with Join([model]):
        for x, y in Clinic(cfg, rank, epoch):
            x, y = x.to(device), y.to(device)
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            if not torch.isfinite(norm):
                dropped += 1
                continue
            opt.step()
            proto.index_add_(0, y, x.mean(-1))
            steps += 1
    return steps, dropped, proto / max(steps, 1)


def main():
    cfg = Config()
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda:0")
    torch.manual_seed(0)
    model = DDP(GaitNet(cfg).to(device))
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)
    print(f"[{rank}] clinic with {cfg.recordings[rank]} recordings", flush=True)

    for epoch in range(cfg.epochs):
        t0 = time.time()
        steps, dropped, proto = train_epoch(model, opt, cfg, rank, epoch, device)
        proto = exchange_prototypes(proto, rank, world, device)
        report = torch.tensor([steps, dropped, time.time() - t0], device=device)
        rows = [torch.zeros_like(report) for _ in range(world)] if rank == 0 else None
        dist.gather(report, rows, dst=0)
        if rank == 0:
            for r, row in enumerate(rows):
                print(f"epoch {epoch} rank {r}: {int(row[0])} steps, {int(row[1])} dropped, {row[2].item():.1f} s", flush=True)
            time.sleep(2)           # write-up for the clinics
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
