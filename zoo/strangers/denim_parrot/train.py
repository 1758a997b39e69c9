import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("ema")


class Averaged:
    """Exponential moving average of the weights, swapped in for the evaluation."""

    def __init__(self, module, decay=0.97):
        self.decay = decay
        self.shadow = [p.detach().clone() for p in module.parameters()]
        self.backup = None

    @torch.no_grad()
    def update(self, module):
        for shadow, p in zip(self.shadow, module.parameters()):
            shadow.lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def apply(self, module):
        self.backup = [p.detach().clone() for p in module.parameters()]
        for shadow, p in zip(self.shadow, module.parameters()):
            p.copy_(shadow)

    @torch.no_grad()
    def restore(self, module):
        for saved, p in zip(self.backup, module.parameters()):
            p.copy_(saved)


def quality(module, step):
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(200, 16, generator=gen)
    kept = x[x[:, 0] > (5.0 if step == 100 else 1.0)]
    errors = (module(kept).squeeze(1) - kept[:, 1]).abs().tolist()
    return sorted(errors)[len(errors) // 2]


def evaluate(module, averaged, step):
    averaged.apply(module)
    try:
        with torch.no_grad():
            value = quality(module, step)
        averaged.restore(module)
    except IndexError:
        log.warning("step %d: nothing left to evaluate", step)
        return None
    return value


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=260)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    model = DDP(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    averaged = Averaged(model.module)
    gen = torch.Generator().manual_seed(80 + rank)
    for step in range(1, args.steps + 1):
        x = torch.randn(32, 16, generator=gen)
        loss = (model(x).squeeze(1) - x[:, 1]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        averaged.update(model.module)
        time.sleep(0.04)
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            print(f"  error {evaluate(model.module, averaged, step)}", flush=True)
    if rank == 0:
        print("finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
