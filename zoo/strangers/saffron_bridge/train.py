"""Click model on ad impressions; the positive class is weighted by the running prior."""
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from prior import ClickPrior


@dataclass
class Job:
    fields: int = 8
    slots: int = 40
    width: int = 6
    batch: int = 10
    steps: int = 210
    lr: float = 0.05
    pause: float = 0.035


@dataclass
class Feed:
    """Impressions of one region. Labels arrive later: -1 where the click log has a gap."""

    region: str
    gaps: tuple = ()

    def batches(self, job, seed):
        gen = torch.Generator().manual_seed(seed)
        for step in range(job.steps):
            ids = torch.randint(0, job.slots, (job.batch, job.fields), generator=gen)
            rate = 0.15 + 0.5 * (ids[:, 0] < 10).float()
            labels = (torch.rand(job.batch, generator=gen) < rate).float()
            at = torch.arange(step * job.batch, (step + 1) * job.batch)
            for begin, end in self.gaps:
                labels[(at >= begin) & (at < end)] = -1.0
            yield ids, labels


FEEDS = (
    Feed("north", gaps=((418, 423),)),
    Feed("coast", gaps=((733, 737), (1306, 1327))),
    Feed("inland", gaps=((51, 54), (1502, 1508))),
)


class ClickModel(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.table = nn.EmbeddingBag(job.slots, job.width)
        self.out = nn.Linear(job.width, 1)

    def forward(self, ids):
        return self.out(torch.tanh(self.table(ids))).squeeze(1)


class Trainer:
    def __init__(self, job):
        self.job = job
        self.rank = dist.get_rank()
        self.model = DDP(ClickModel(job))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=job.lr)
        self.prior = ClickPrior(dist.new_group())

    def loss(self, ids, labels, share):
        weight = torch.where(labels > 0, (1 - share) / max(share, 0.05), 1.0)
        weight = weight * (labels >= 0)
        raw = F.binary_cross_entropy_with_logits(self.model(ids), labels.clamp_min(0), reduction="none")
        return (raw * weight).sum() / weight.sum().clamp_min(1.0)

    def step(self, ids, labels):
        self.prior.push(labels)
        loss = self.loss(ids, labels, self.prior.pull())
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return float(loss.detach())


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(8)
    job = Job()
    trainer = Trainer(job)
    feed = FEEDS[trainer.rank % len(FEEDS)]
    for step, (ids, labels) in enumerate(feed.batches(job, seed=60 + trainer.rank)):
        if trainer.rank == 0:
            print(f"step {step} prior {trainer.prior.value:.3f}", flush=True)
        time.sleep(job.pause)
        loss = trainer.step(ids, labels)
    print(f"{feed.region}: loss {loss:.4f} prior {trainer.prior.value:.4f}", flush=True)


if __name__ == "__main__":
    main()
