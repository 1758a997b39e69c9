"""Gossip averaging of a price model among four exchanges, with overlapped communication."""
import itertools
import queue
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS = 120


class Heartbeat(threading.Thread):
    def __init__(self, rank):
        super().__init__(daemon=True)
        self.rank, self.beats, self.step = rank, 0, 0

    def run(self):
        while True:
            time.sleep(2.0)
            self.beats += 1
            print(f"[beat {self.rank}] {self.beats} at step {self.step}", flush=True)


class Prefetcher(threading.Thread):
    def __init__(self, seed, depth=3):
        super().__init__(daemon=True)
        self.gen = torch.Generator().manual_seed(seed)
        self.box = queue.Queue(maxsize=depth)

    def run(self):
        truth = torch.linspace(0, 1, 16).unsqueeze(1)
        for _ in range(STEPS):
            x = torch.randn(32, 16, generator=self.gen)
            self.box.put((x, x @ truth))
        self.box.put(None)


def build_groups(world):
    pairs = {c: dist.new_group(list(c)) for c in itertools.combinations(range(world), 2)}
    halves = [dist.new_group(list(range(world // 2))), dist.new_group(list(range(world // 2, world)))]
    odd = dist.new_group([r for r in range(world) if r % 2])
    return pairs, halves, odd


def partner(rank, step, world):
    shift = step % (world - 1) + 1
    return rank ^ shift


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs, halves, odd = build_groups(world)
    beat = Heartbeat(rank)
    beat.start()
    feed = Prefetcher(seed=rank)
    feed.start()

    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    pending = None
    step = 0
    while (item := feed.box.get()) is not None:
        beat.step = step
        x, y = item
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        if pending is not None:
            work, flat = pending
            work.wait()
            with torch.no_grad():
                for p, q in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()])):
                    p.lerp_(q.view_as(p) / 2, 0.5)
        opt.step()
        other = partner(rank, step, world)
        flat = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
        group = pairs[min(rank, other), max(rank, other)]
        pending = (dist.all_reduce(flat, group=group, async_op=True), flat)
        time.sleep(0.04 + 0.03 * (rank == step % world))
        if step % 20 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, group=halves[rank // (world // 2)])
            if rank % 2:
                spread = loss.detach().clone()
                dist.all_reduce(spread, op=dist.ReduceOp.MAX, group=odd)
                print(f"rank {rank} step {step} odd max {spread.item():.4f}", flush=True)
        step += 1
    pending[0].wait()

    vec = nn.utils.parameters_to_vector(net.parameters()).detach()
    dist.all_reduce(vec)
    if rank == 0:
        print(f"ring average norm {vec.div_(world).norm():.4f} after {step} steps", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
