import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

DOMAINS = ("news", "wiki", "code", "books", "forum", "papers", "mail")


class DomainMeters:
    """One meter and one communicator per domain, so that slow domains do not hold up the others."""

    def __init__(self):
        self.groups = {name: dist.new_group(backend="gloo") for name in DOMAINS}
        self.sums = {name: torch.zeros(2) for name in DOMAINS}
        self.touched = set()

    def add(self, name, loss):
        self.sums[name] += torch.tensor([loss, 1.0])
        self.touched.add(name)

    def flush(self):
        means = {}
        for name in self.touched:
            total = self.sums[name].clone()
            dist.all_reduce(total, group=self.groups[name])
            means[name] = (total[0] / total[1]).item()
            self.sums[name].zero_()
        self.touched.clear()
        return means


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--flush-every", type=int, default=70)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    meters = DomainMeters()
    torch.manual_seed(7)
    model = DDP(nn.Sequential(nn.Linear(18, 18), nn.ReLU(), nn.Linear(18, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(60 + rank)
    for step in range(1, args.steps + 1):
        name = DOMAINS[step % len(DOMAINS)]
        x = torch.randn(32, 18, generator=gen)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        meters.add(name, loss.item())
        time.sleep(0.06)
        if step % args.flush_every == 0:
            if rank == 0:
                print(f"step {step}: flushing meters", flush=True)
            means = meters.flush()
            if rank == 0:
                print({k: round(v, 3) for k, v in means.items()}, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
