"""Asynchronous parameter server for warehouse demand: workers push gradients when they have them, rank 0 answers with weights."""
import argparse
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn

GRAD, BYE = 1, 2


def build():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))


def flatten(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def unflatten(flat, params):
    at = 0
    for p in params:
        p.data.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


class Server:
    def __init__(self, world, lr):
        self.model = build()
        self.params = list(self.model.parameters())
        self.lr, self.open = lr, set(range(1, world))
        self.pushes = {r: 0 for r in self.open}

    def serve(self):
        size = sum(p.numel() for p in self.params)
        head = torch.zeros(2)
        while self.open:
            src = dist.recv(head)
            kind, samples = int(head[0]), int(head[1])
            if kind == BYE:
                self.open.discard(src)
                print(f"worker {src} is done after {self.pushes[src]} pushes", flush=True)
                continue
            grad = torch.empty(size)
            dist.recv(grad, src=src, tag=7)
            flat = flatten([p.data for p in self.params])
            flat -= self.lr * grad * (samples / 32)
            unflatten(flat, self.params)
            dist.send(flat, dst=src, tag=8)
            self.pushes[src] += 1


def worker(rank, budget):
    rng = random.Random(rank)
    gen = torch.Generator().manual_seed(rank)
    model = build()
    params = list(model.parameters())
    pushes, started = 0, time.time()
    for order in range(budget):
        n = rng.choice([8, 16, 32])
        x = torch.randn(n, 10, generator=gen)
        y = x[:, :2].sum(1, keepdim=True)
        loss = nn.functional.mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        if loss.item() < 0.02:
            continue                    # nothing worth sending
        dist.send(torch.tensor([float(GRAD), float(n)]), dst=0)
        dist.send(flatten([p.grad for p in params]), dst=0, tag=7)
        fresh = torch.empty(sum(p.numel() for p in params))
        dist.recv(fresh, src=0, tag=8)
        unflatten(fresh, params)
        pushes += 1
        time.sleep(0.02 * rank)
        if rank == 2 and order == 120:
            print("worker 2: stock count, back soon", flush=True)
            time.sleep(12)
    dist.send(torch.tensor([float(BYE), 0.0]), dst=0)
    print(f"worker {rank}: {pushes} pushes in {time.time() - started:.1f} s, loss {loss.item():.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--budget", type=int, nargs="+", default=[0, 250, 180, 220])
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"[{rank}] joined the warehouse", flush=True)
    if rank == 0:
        Server(world, args.lr).serve()
    else:
        worker(rank, args.budget[rank])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
