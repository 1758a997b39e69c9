"""Actors on ranks 1.. send rollouts to the learner on rank 0 and share their own statistics."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn

CHUNK = (16, 24)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--deep-at", type=int, default=17, help="iteration of the deep rollout")
    parser.add_argument("--deep-rank", type=int, default=2)
    parser.add_argument("--deep-seconds", type=float, default=7.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def setup():
    os.environ.setdefault("NCCL_HOSTID", "host" + os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return dist.get_rank(), dist.get_world_size(), device


def flatten(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def restore(net, flat):
    offset = 0
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()


class Learner:
    def __init__(self, args, actors, audit, device):
        self.actors, self.audit, self.device = actors, audit, device
        self.net = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 24)).to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=args.lr)

    def collect(self):
        chunks = []
        header = torch.zeros(1, dtype=torch.int64, device=self.device)
        for actor in self.actors:
            dist.recv(header, src=actor)
            for _ in range(int(header.item())):
                chunk = torch.empty(CHUNK, device=self.device)
                dist.recv(chunk, src=actor)
                chunks.append(chunk)
        return chunks

    def iterate(self, iteration):
        chunks = self.collect()
        loss = torch.zeros((), device=self.device)
        for chunk in chunks:
            loss = loss + nn.functional.mse_loss(self.net(chunk), chunk) / len(chunks)
        if chunks:
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        dist.broadcast(flatten(self.net), src=0)
        if iteration % 10 == 9:
            digest = flatten(self.net).sum().reshape(1)
            dist.all_reduce(digest, op=dist.ReduceOp.MAX, group=self.audit)
        return f"{len(chunks)} chunks, loss {loss.item():.4f}"


class Actor:
    def __init__(self, args, rank, peers, audit, device):
        self.args, self.rank, self.peers, self.audit, self.device = args, rank, peers, audit, device
        self.net = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 24)).to(device)
        self.noise = torch.Generator(device=device).manual_seed(40 + rank)

    def plan(self, iteration):
        """How many chunks are worth sending: novelty decays at its own pace on every actor."""
        return (iteration * self.rank + iteration // 3) % 4

    def rollout(self):
        return torch.randn(CHUNK, device=self.device, generator=self.noise)

    def deep_rollout(self):
        state = torch.randn(1024, 1024, device=self.device, generator=self.noise)
        mixing = torch.eye(1024, device=self.device) * 0.99
        deadline, depth = time.monotonic() + self.args.deep_seconds, 0
        while time.monotonic() < deadline:
            for _ in range(8):
                state = torch.tanh(state @ mixing)
            depth += 8
            state.mean().item()
        print(f"rank {self.rank} deep rollout reached depth {depth}", flush=True)

    def iterate(self, iteration):
        if iteration == self.args.deep_at and self.rank == self.args.deep_rank:
            print(f"rank {self.rank} iteration {iteration:03d} deep rollout", flush=True)
            self.deep_rollout()
        count = self.plan(iteration)
        dist.send(torch.tensor([count], dtype=torch.int64, device=self.device), dst=0)
        moments = torch.zeros(2, device=self.device)
        for _ in range(count):
            chunk = self.rollout()
            moments += torch.stack([chunk.sum(), chunk.pow(2).sum()])
            dist.send(chunk, dst=0)
        dist.all_reduce(moments, group=self.peers)
        weights = flatten(self.net)
        dist.broadcast(weights, src=0)
        restore(self.net, weights)
        if self.audit is not None and iteration % 10 == 9:
            digest = weights.sum().reshape(1)
            dist.all_reduce(digest, op=dist.ReduceOp.MAX, group=self.audit)
        return f"sent {count}, second moment {moments[1].item():.1f}"


def main():
    args = parse_args()
    rank, world, device = setup()
    torch.manual_seed(0)
    actors = list(range(1, world))
    peers = dist.new_group(actors)
    audit = dist.new_group([0, world - 1])
    dist.barrier()
    if rank == 0:
        role = Learner(args, actors, audit, device)
    else:
        role = Actor(args, rank, peers, audit if rank == world - 1 else None, device)
    for iteration in range(args.iterations):
        note = role.iterate(iteration)
        time.sleep(0.03)
        if iteration % 5 == 0:
            print(f"rank {rank} iteration {iteration:03d} {note}", flush=True)
    dist.barrier()
    print(f"rank {rank} finished", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
