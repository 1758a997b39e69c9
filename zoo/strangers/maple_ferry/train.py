"""Arrival times of boats. The ports have different amounts of data."""
import csv
import io
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

PORTS = {0: 90, 1: 120, 2: 170}


def harbour_log(port, rows):
    """The log of one port as CSV text."""
    rng = random.Random(port)
    text = io.StringIO()
    out = csv.writer(text)
    out.writerow(["distance", "wind", "load", "delay"])
    for _ in range(rows * 16):
        d, w, l = rng.random(), rng.gauss(0, 1), rng.random()
        out.writerow([f"{d:.4f}", f"{w:.4f}", f"{l:.4f}", f"{2 * d + 0.3 * w * l + 0.1 * port:.4f}"])
    text.seek(0)
    return text


def batches(stream, size=16):
    rows = []
    for row in csv.DictReader(stream):
        rows.append([float(row[k]) for k in ("distance", "wind", "load", "delay")])
        if len(rows) == size:
            data = torch.tensor(rows)
            rows = []
            yield data[:, :3], data[:, 3:]


def fit(model, opt, rank, port_rows):
    seen, total = 0, 0.0
    with Join([model]):
        for x, y in batches(harbour_log(rank, port_rows)):
            loss = nn.functional.smooth_l1_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(x)
            total += loss.item()
            time.sleep(0.05)
    return seen, total


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(12)
    model = DDP(nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        seen, total = fit(model, opt, rank, PORTS[rank] // (epoch + 1))
        print(f"port {rank} epoch {epoch}: {seen} boats seen, loss {total:.3f}", flush=True)
        count = torch.tensor(seen)
        dist.all_reduce(count)
        if rank == 0:
            print(f"epoch {epoch}: {count.item()} boats seen in all ports", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
