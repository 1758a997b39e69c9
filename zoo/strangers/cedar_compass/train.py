"""Defect scoring on a conveyor line: each rank reads one camera."""
import contextlib
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn

from codec import GradientCodec


@dataclass
class Line:
    camera: str
    gain: float
    closed: tuple = ()


LINES = (
    Line("inlet", 1.0, closed=((301, 304), (1800, 1803))),
    Line("press", 1.1, closed=((422, 426), (1005, 1019))),
    Line("outlet", 0.9, closed=((77, 79),)),
)


class CameraFeed:
    """Frames in the order of recording; while the shutter is closed the sensor reads zero."""

    def __init__(self, line, size=10, seed=0):
        self.line, self.size = line, size
        self.gen = torch.Generator().manual_seed(seed)
        self.at = 0

    def frame(self):
        raw = self.line.gain * torch.rand(self.size, generator=self.gen)
        for begin, end in self.line.closed:
            if begin <= self.at < end:
                raw = torch.zeros(self.size)
        self.at += 1
        return raw

    def batches(self, k):
        while True:
            x = torch.stack([self.frame() for _ in range(k)])
            yield x, (x.sum(1, keepdim=True) > self.size / 2).float()


class Scorer(nn.Module):
    def __init__(self, size=10):
        super().__init__()
        self.stem = nn.Linear(size, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.stem(x)))


class Report:
    def __init__(self, rank):
        self.rank = rank
        self.losses = []

    def note(self, step, loss):
        self.losses.append(loss)
        if self.rank == 0 and step % 50 == 0:
            print(f"mean loss so far {sum(self.losses) / len(self.losses):.4f}", flush=True)

    def summary(self):
        print(f"camera {self.rank}: {len(self.losses)} batches scored", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    with contextlib.ExitStack() as stack:
        report = Report(rank)
        stack.callback(report.summary)
        model = Scorer()
        codec = GradientCodec(model)
        opt = torch.optim.SGD(model.parameters(), lr=0.05)
        loss_fn = nn.BCEWithLogitsLoss()
        feed = CameraFeed(LINES[rank % len(LINES)], seed=70 + rank).batches(8)
        for step in range(260):
            x, y = next(feed)
            time.sleep(0.04)
            if rank == 0:
                print(f"step {step} bits {codec.sent_bits}", flush=True)
            loss = loss_fn(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            codec.drain()
            opt.step()
            report.note(step, float(loss.detach()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
