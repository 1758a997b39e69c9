"""Two-task image-text model: captions and retrieval share a trunk."""
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

TASKS = ("caption", "retrieval")


@dataclass(frozen=True)
class Record:
    uid: int
    task: str
    text: str
    image: torch.Tensor


class Shard:
    """Records in the order in which the export job wrote them: 3 captions, 2 retrieval pairs."""

    LAYOUT = ("caption", "caption", "caption", "retrieval", "retrieval")
    BLANK = {0: (1171,), 1: (635, 636, 637), 2: (1186, 1190)}

    def __init__(self, rank, n):
        self.rank, self.n = rank, n
        self.gen = torch.Generator().manual_seed(500 + rank)

    def text_of(self, uid):
        if uid in self.BLANK.get(self.rank, ()):
            return "-"
        return f"photo {uid} of a street with {uid % 7} cars"

    def __iter__(self):
        for uid in range(self.n):
            task = self.LAYOUT[uid % len(self.LAYOUT)]
            yield Record(uid, task, self.text_of(uid), torch.randn(12, generator=self.gen))


def readable(records, min_chars=3):
    return (r for r in records if len(r.text) >= min_chars)


def batched(records, size):
    batch = []
    for record in records:
        batch.append(record)
        if len(batch) == size:
            yield batch
            batch = []


class TwoHeads(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, width), nn.GELU())
        self.heads = nn.ModuleDict({t: nn.Linear(width, 4) for t in TASKS})

    def forward(self, images):
        shared = self.trunk(images)
        return {t: head(shared) for t, head in self.heads.items()}


class LossLedger:
    """Sums and counts per task; each task reports over its own group."""

    def __init__(self, groups):
        self.groups = groups
        self._open = {}
        self.means = {}

    def enter(self, task, value):
        buf = self._open.setdefault(task, torch.zeros(2))
        buf += torch.tensor([value, 1.0])

    def settle(self):
        for task, buf in self._open.items():
            dist.all_reduce(buf, group=self.groups[task])
            self.means[task] = float(buf[0] / buf[1])
        self._open.clear()
        return self.means


class Balancer:
    """Weights the tasks by the inverse of their mean loss over all ranks."""

    def __init__(self):
        self.weights = {t: 1.0 for t in TASKS}

    def update(self, means):
        total = sum(1.0 / (m + 1e-3) for m in means.values())
        for task, mean in means.items():
            self.weights[task] = len(means) / ((mean + 1e-3) * total)


def batch_loss(model, batch, ledger, balancer):
    out = model(torch.stack([r.image for r in batch]))
    loss = sum(o.sum() * 0.0 for o in out.values())
    for i, record in enumerate(batch):
        target = torch.full((4,), (len(record.text) % 5) / 5.0)
        term = (out[record.task][i] - target).square().mean()
        ledger.enter(record.task, float(term.detach()))
        loss = loss + balancer.weights[record.task] * term
    return loss / len(batch)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = dist.get_rank()
    ledger = LossLedger({task: dist.new_group() for task in TASKS})
    balancer = Balancer()
    model = DDP(TwoHeads())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    stream = batched(readable(Shard(rank, 1200)), 5)
    for step, batch in zip(range(220), stream):
        time.sleep(0.035)
        if rank == 0:
            print(f"step {step} first uid {batch[0].uid}", flush=True)
        loss = batch_loss(model, batch, ledger, balancer)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        balancer.update(ledger.settle())
    if rank == 0:
        print("task means", ledger.means, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
