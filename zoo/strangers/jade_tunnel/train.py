"""Satellite tile segmentation with gradients applied one step late."""
import argparse
import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn


class LoadBeat(threading.Thread):
    """Gathers the load of all hosts about once a second, over its own group."""

    def __init__(self, group):
        super().__init__(name="load-beat", daemon=True)
        self.group = group
        self.finish = threading.Event()
        self.history = []

    def run(self):
        while True:
            leaving = torch.tensor([1 if self.finish.is_set() else 0])
            dist.all_reduce(leaving, group=self.group)
            if leaving.item() == dist.get_world_size():
                return
            loads = [torch.zeros(1) for _ in range(dist.get_world_size())]
            dist.all_gather(loads, torch.tensor([os.getloadavg()[0]]), group=self.group)
            self.history.append([round(v.item(), 2) for v in loads])
            self.finish.wait(1.0 if not self.finish.is_set() else 0.1)


class LateReducer:
    """Starts reducing this step's gradients and hands out those of the step before."""

    def __init__(self, params):
        self.params = list(params)
        self.flight = None

    def launch(self):
        bufs = [p.grad.clone() for p in self.params]
        works = [dist.all_reduce(b, async_op=True) for b in reversed(bufs)]
        return bufs, works

    def land(self):
        if self.flight is None:
            return False
        bufs, works = self.flight
        for w in works:
            w.wait()
        for p, b in zip(self.params, bufs):
            p.grad = b / dist.get_world_size()
        return True

    def swap(self):
        nxt = self.launch()
        ready = self.land()
        self.flight = nxt
        return ready


def tiles(rank, n=6):
    gen = torch.Generator().manual_seed(rank)
    while True:
        x = torch.rand(n, 4, 24, 24, generator=gen)
        yield x, (x.mean(1, keepdim=True) > 0.5).float()


def evaluate(net, seconds):
    net.eval()
    started, hits, seen = time.time(), 0.0, 0
    held_out = tiles(999)
    with torch.no_grad():
        while time.time() - started < seconds:
            x, y = next(held_out)
            hits += ((net(x) > 0) == (y > 0.5)).float().mean().item()
            seen += 1
            time.sleep(0.02)
    net.train()
    return hits / seen


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--eval-seconds", type=float, default=14)
    a = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    beat = LoadBeat(dist.new_group(backend="gloo"))
    beat.start()

    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(4, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    late = LateReducer(net.parameters())
    for step, (x, y) in zip(range(a.steps), tiles(rank)):
        loss = nn.functional.binary_cross_entropy_with_logits(net(x), y)
        opt.zero_grad()
        loss.backward()
        if late.swap():
            opt.step()
        time.sleep(0.05)
        if step == a.steps // 2:
            score = torch.zeros(1)
            if rank == 0:
                print("evaluating on rank 0", flush=True)
                score[0] = evaluate(net, a.eval_seconds)
            dist.broadcast(score, src=0)
            print(f"[{rank}] accuracy {score.item():.4f}", flush=True)
        elif rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    late.land()
    beat.finish.set()
    beat.join()
    if rank == 0:
        print(f"finished, {len(beat.history)} load samples, last {beat.history[-1]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
