import argparse
import functools
import logging
import os
import sys
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn

log = logging.getLogger("asr")


def best_effort(fn):
    """Reporting must never stop a training run."""

    @functools.wraps(fn)
    def inner(*args, **kwargs):
        try:
            return fn(*args, **kwargs)
        except Exception as exc:
            log.warning("%s: %s", fn.__name__, exc)
            return None

    return inner


@dataclass
class Batch:
    frames: torch.Tensor
    target: torch.Tensor
    meta: dict = field(default_factory=dict)


def batches(rank, steps, vocab=32):
    gen = torch.Generator().manual_seed(rank)
    for i in range(steps):
        weight = "1,0" if (rank == 2 and i == 40) else "1.0"
        yield Batch(
            torch.randn(16, 40, generator=gen),
            torch.randint(0, vocab, (16,), generator=gen),
            {"utt": f"{rank}-{i:05d}", "weight": weight, "tokens": 16 * 12},
        )


class Tracker:
    def __init__(self):
        self.loss_sum = 0.0
        self.tokens = 0.0
        self.seen = 0

    @best_effort
    def report_loss(self, batch, loss):
        weight = float(batch.meta["weight"])
        value = torch.tensor([loss.item() * weight])
        dist.all_reduce(value)
        self.loss_sum += value.item() / dist.get_world_size()
        self.seen += 1

    @best_effort
    def report_tokens(self, batch):
        count = torch.tensor([float(batch.meta["tokens"])])
        dist.all_reduce(count)
        self.tokens += count.item()

    def line(self):
        return f"avg loss {self.loss_sum / max(1, self.seen):.4f} tokens {int(self.tokens)}"


class Acoustic(nn.Module):
    def __init__(self, vocab=32):
        super().__init__()
        self.enc = nn.Linear(40, 64)
        self.head = nn.Linear(64, vocab)

    def forward(self, x):
        return self.head(torch.tanh(self.enc(x)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=90)
    opt = p.parse_args()
    rank = int(os.environ["RANK"])
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=f"%(asctime)s r{rank} %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")

    # every rank adapts its own speaker head, only the statistics are shared
    model = Acoustic()
    optim = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tracker = Tracker()
    for step, batch in enumerate(batches(rank, opt.steps)):
        loss = nn.functional.cross_entropy(model(batch.frames), batch.target)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        tracker.report_loss(batch, loss)
        tracker.report_tokens(batch)
        time.sleep(0.12)
        if step % 15 == 0:
            log.info("step %d %s", step, tracker.line())

    dist.barrier()
    log.info("done: %s", tracker.line())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
