"""Wind-farm power forecasting. A background thread prepares windows ahead of the training loop."""
import argparse
import queue
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn

COLUMNS = ["speed", "direction", "pressure", "power"]


def telemetry(turbine, chunk, rows=40):
    """One chunk of a turbine's log, as lines of text."""
    g = torch.Generator().manual_seed(turbine * 1000 + chunk)
    for _ in range(rows):
        speed = 4 + 8 * torch.rand(1, generator=g).item()
        direction = 360 * torch.rand(1, generator=g).item()
        pressure = 1000 + 20 * torch.rand(1, generator=g).item()
        power = 0.4 * speed ** 2 + torch.randn(1, generator=g).item()
        fields = [f"{speed:.2f}", f"{direction:.1f}", f"{pressure:.1f}", f"{power:.2f}"]
        if turbine == 1 and chunk == 130:
            fields[2] = "1,013.2"
        yield ";".join(fields)


class WindowFeeder:
    def __init__(self, turbine, chunks, depth=4):
        self.turbine, self.chunks = turbine, chunks
        self.ready = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self.fill, name="feeder", daemon=True)
        self.thread.start()

    def fill(self):
        for chunk in range(self.chunks):
            table = [self.parse(line) for line in telemetry(self.turbine, chunk)]
            data = torch.tensor(table)
            mean = torch.tensor([8.0, 180.0, 1010.0])
            scale = torch.tensor([3.0, 100.0, 6.0])
            self.ready.put(((data[:, :3] - mean) / scale, data[:, 3:] / 30.0))
        self.ready.put(None)

    def parse(self, line):
        return [float(v) for v in line.split(";")]

    def __iter__(self):
        while True:
            item = self.ready.get(timeout=6.0)
            if item is None:
                return
            yield item


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 20), nn.ELU(), nn.Linear(20, 1))

    def forward(self, x):
        return self.layers(x)


def reduce_gradients(model):
    world = dist.get_world_size()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(world)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--chunks", type=int, default=260)
    ap.add_argument("--lr", type=float, default=0.02)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(14)
    model = Forecaster()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.8)
    feeder = WindowFeeder(rank, args.chunks)
    for step, (x, y) in enumerate(feeder):
        time.sleep(0.045)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        reduce_gradients(model)
        opt.step()
        if step % 25 == 0 and rank == 0:
            print(f"window {step}: loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print("all windows seen", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
