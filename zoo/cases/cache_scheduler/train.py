"""Serve requests from a paged cache; when it is full, all ranks agree on what to evict."""

import argparse
import time

import torch
import torch.distributed as dist


class PagedCache:
    def __init__(self, blocks):
        self.free = blocks
        self.requests = {}

    def grow(self, request, blocks):
        blocks = min(blocks, self.free)
        self.free -= blocks
        self.requests[request] = self.requests.get(request, 0) + blocks

    def evict(self, count):
        for request in sorted(self.requests)[:count]:
            self.free += self.requests.pop(request)


class Scheduler:
    def __init__(self, blocks, rank):
        self.cache = PagedCache(blocks)
        self.rank = rank
        self.weights = torch.ones(32)

    def blocks_for(self, iteration):
        # The prefix cache of rank 2 misses one entry that the other ranks kept.
        return 2 if (self.rank, iteration) == (2, 305) else 1

    def step(self, iteration):
        self.cache.grow(iteration // 4, self.blocks_for(iteration))
        if self.cache.free == 0:
            votes = [torch.zeros(1) for _ in range(dist.get_world_size())]
            dist.all_gather(votes, torch.tensor([float(len(self.cache.requests)) // 2]))
            self.cache.evict(int(min(vote.item() for vote in votes)))
        hidden = self.weights * 0.5
        dist.all_reduce(hidden)
        self.weights = hidden / hidden.sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--blocks", type=int, default=48)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    scheduler = Scheduler(args.blocks, rank)
    for iteration in range(args.iterations):
        time.sleep(0.008)
        scheduler.step(iteration)
        if rank == 0 and iteration % 10 == 0:
            print(f"iteration {iteration} free blocks {scheduler.cache.free}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
