import functools
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def on_main(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        if dist.get_rank() == 0:
            return fn(*args, **kwargs)
        return None
    return inner


class RunningMean:
    def __init__(self, group):
        self.group = group
        self.total = 0.0
        self.count = 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def local(self):
        return self.total / max(self.count, 1)

    @property
    def avg(self):
        pair = torch.tensor([self.total, float(self.count)], dtype=torch.float64)
        dist.all_reduce(pair, group=self.group)
        return (pair[0] / pair[1]).item()

    def reset(self):
        self.total, self.count = 0.0, 0


@on_main
def progress(step, meter):
    print(f"step {step:4d}  local loss {meter.local:.4f}", flush=True)


@on_main
def summary(epoch, meter, seconds):
    rate = meter.count / seconds
    print(f"epoch {epoch} took {seconds:.1f}s at {rate:.0f} samples/s", flush=True)
    print(f"epoch {epoch} mean loss {meter.avg:.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 4))
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    meter = RunningMean(dist.new_group())
    gen = torch.Generator().manual_seed(rank)

    for epoch in range(3):
        began = time.time()
        meter.reset()
        for step in range(40):
            x = torch.randn(32, 24, generator=gen)
            y = x[:, :4].argmax(1)
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            meter.update(loss.item(), len(x))
            time.sleep(0.05)
            if step % 10 == 0:
                progress(step, meter)
        summary(epoch, meter, time.time() - began)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
