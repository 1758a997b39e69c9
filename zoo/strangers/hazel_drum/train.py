import argparse
import math
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CLASSES = 8


class Pointer(nn.Module):
    """Picks one of up to ten slots; empty slots get -inf before the softmax."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(12, 16)
        self.key = nn.Linear(12, 16)

    def forward(self, slots, filled):
        q = self.query(slots.mean(1)).unsqueeze(1)
        logits = (q * self.key(slots)).sum(-1) / 4.0
        return logits.masked_fill(~filled, -math.inf)


class PerClassError:
    """Error per class over all ranks; a class without samples is NaN and is left out of the mean."""

    def __init__(self):
        self.values = {c: [] for c in range(CLASSES)}

    def update(self, kinds, errors):
        for kind, error in zip(kinds.tolist(), errors.tolist()):
            self.values[kind].append(error)

    def compute(self):
        own = torch.tensor([sum(v) / len(v) if v else math.nan for v in self.values.values()])
        parts = [torch.empty(CLASSES) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        return torch.stack(parts).nanmean(0).nanmean()


def batch(gen, rank):
    slots = torch.randn(24, 10, 12, generator=gen)
    count = torch.randint(2, 11, (24, 1), generator=gen)
    filled = torch.arange(10).expand(24, 10) < count
    target = slots[..., 0].masked_fill(~filled, -9e9).argmax(1)
    kinds = torch.randint(0, CLASSES if rank else 3, (24,), generator=gen)
    return slots, filled, target, kinds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DDP(Pointer())
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    gen = torch.Generator().manual_seed(50 + rank)
    best = torch.tensor([math.inf])
    dist.all_reduce(best, op=dist.ReduceOp.MIN)  # a resumed run may bring a better one
    print("pointer training", flush=True)
    for epoch in range(args.epochs):
        metric = PerClassError()
        for _ in range(40):
            slots, filled, target, kinds = batch(gen, rank)
            logits = model(slots, filled)
            loss = nn.functional.cross_entropy(logits, target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            metric.update(kinds, (logits.argmax(1) != target).float())
            time.sleep(0.03)
        error = metric.compute()
        worst = torch.tensor([loss.item() if epoch else math.inf])
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        best = torch.minimum(best, error.view(1))
        print(f"[{rank}] epoch {epoch} error {error:.3f} best {best.item():.3f} worst {worst.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
