"""A script that starts its ranks itself, with torch's own spawn: nothing in their environment tells them apart."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist
from plain import train
from torch.multiprocessing.spawn import start_processes


def work(rank: int, world: int, port: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    start_processes(  # type: ignore[no-untyped-call]
        work,
        args=(2, os.environ["FREE_PORT"]),
        nprocs=2,
        start_method="fork" if "--fork" in sys.argv else "spawn",
    )
