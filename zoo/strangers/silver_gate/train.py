"""River gauge forecasting, 2-way data parallel x 2-way tensor parallel."""
import argparse
import queue
import random
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

MONTHS, DAYS, GAUGES = 12, 30, 8


def write_station(folder: Path, station: int):
    """Stands in for the nightly export of the hydrology office."""
    rng = random.Random(station)
    for month in range(MONTHS):
        rows = []
        for day in range(DAYS):
            level = [f"{rng.gauss(2.0, 0.4):.3f}" for _ in range(GAUGES)]
            if (station, month, day) == (1, 7, 11):
                level[5] = "--"  # gauge was being serviced
            rows.append(",".join(level))
        (folder / f"station{station}-{month:02d}.csv").write_text("\n".join(rows))


def parse_row(row: str) -> list[float]:
    return [float(v) for v in row.split(",")]


class Reader:
    """Reads ahead in a thread, month by month, yields (levels today, levels tomorrow)."""

    def __init__(self, folder: Path, station: int, ahead: int = 4):
        self.folder, self.station = folder, station
        self.queue: queue.Queue = queue.Queue(maxsize=ahead)
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self):
        try:
            for month in range(MONTHS):
                path = self.folder / f"station{self.station}-{month:02d}.csv"
                print(f"station {self.station}: month {month}", flush=True)
                previous = None
                for row in path.read_text().splitlines():
                    levels = torch.tensor(parse_row(row))
                    if previous is not None:
                        self.queue.put((previous, levels))
                    previous = levels
            self.queue.put(None)
        except Exception as e:
            self.queue.put(e)

    def __iter__(self):
        while (item := self.queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item


class Forecaster(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.up = nn.Linear(GAUGES, width)
        self.down = nn.Linear(width, GAUGES)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", type=Path, default=Path("/tmp/gauges"))
    ap.add_argument("--width", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.02)
    args = ap.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"], mesh["tp"]
    station, lane = dp.get_local_rank(), tp.get_local_rank()
    if lane == 0:
        args.data.mkdir(parents=True, exist_ok=True)
        write_station(args.data, station)

    torch.manual_seed(0)
    model = Forecaster(args.width)
    parallelize_module(model, tp, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    feeder = dist.get_global_rank(tp.get_group(), 0)
    batches = iter(Reader(args.data, station)) if lane == 0 else None

    steps = MONTHS * (DAYS - 1)
    for step in range(steps):
        pair = torch.empty(2, GAUGES)
        if lane == 0:
            x, y = next(batches)
            pair.copy_(torch.stack([x, y]))
        dist.broadcast(pair, src=feeder, group=tp.get_group())
        time.sleep(0.02)
        loss = (model(pair[:1]) - pair[1:]).square().mean()
        loss.backward()
        for p in model.parameters():
            g = p.grad.to_local()
            dist.all_reduce(g, group=dp.get_group())
            g.div_(dp.size())
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}/{steps} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
