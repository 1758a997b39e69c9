"""Ranks as plain actors of a Ray cluster that this script starts: Ray's daemons start their processes."""

from __future__ import annotations

import os

import ray
import torch.distributed as dist
from plain import train


@ray.remote(num_cpus=0)
class Worker:
    def join(self, rank: int, world: int, port: str) -> None:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)

    def train(self) -> None:
        train()
        dist.destroy_process_group()


if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    workers = [Worker.remote() for _ in range(2)]  # type: ignore[attr-defined]
    ray.get([worker.join.remote(rank, 2, os.environ["FREE_PORT"]) for rank, worker in enumerate(workers)])
    ray.get([worker.train.remote() for worker in workers])
