"""Fraud scoring with FSDP2, asynchronous checkpoints and torchmetrics."""
import argparse
import lzma
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchmetrics import CatMetric, MeanMetric


class Scorer(nn.Module):
    def __init__(self, fields=22, dim=40):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(fields, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


class Checkpoints:
    """At most one save is in flight."""

    def __init__(self, root):
        self.root, self.flight = root, None
        self.group = dist.new_group(backend="gloo")

    def start(self, step, net):
        self.wait()
        path = os.path.join(self.root, f"step{step}")
        self.flight = dcp.async_save({"net": net.state_dict()}, checkpoint_id=path, process_group=self.group)

    def wait(self):
        if self.flight is not None:
            self.flight.result()
            self.flight = None


def payments(rank):
    gen = torch.Generator().manual_seed(60 + rank)
    while True:
        n = 24 + 8 * rank  # branches differ in size
        x = torch.randn(n, 22, generator=gen)
        yield x, (x[:, 2] + x[:, 7] > 1.2).float()


def compress_archive(root, rank, seconds):
    print(f"[{rank}] archive of the last state", flush=True)
    until = time.time() + seconds
    size = 0
    while time.time() < until:
        size += len(lzma.compress(os.urandom(60_000)))
        time.sleep(0.05)
    with open(os.path.join(root, "archive.txt"), "w") as f:
        f.write(f"{size}\n")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--steps", type=int, default=75)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs(a.out, exist_ok=True)
    torch.manual_seed(31)
    net = Scorer()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(net.body, mesh=mesh)
    fully_shard(net, mesh=mesh)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
    saver = Checkpoints(a.out)
    mean_loss, high = MeanMetric(), CatMetric()

    for step, (x, y) in zip(range(a.steps), payments(rank)):
        logit = net(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logit, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean_loss.update(loss.detach())
        high.update(logit.detach().sigmoid().topk(2 + rank).values)
        time.sleep(0.08)
        if step % 25 == 24:
            saver.start(step, net)
            value, top = mean_loss.compute(), high.compute()
            print(f"[{rank}] step {step} loss {value:.4f} top {len(top)} {top.max():.3f}", flush=True)
            mean_loss.reset()
            high.reset()
    saver.wait()
    if rank == 1:
        compress_archive(a.out, rank, 10)
    dist.barrier()
    print(f"[{rank}] finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
