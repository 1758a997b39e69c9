"""What goes wrong on rank 1, for programs that launchers start."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch.distributed as dist

AT_STEP = 5


def wanted() -> str:
    return os.environ.get("FAULT", "none")


def misbehave(step: int, rank: int) -> None:
    if step != AT_STEP:
        return
    if wanted() == "hang" and rank == 1:
        dist.barrier()
    if wanted() == "wait":
        print("waits for nothing", flush=True)
        time.sleep(60)
    once = wanted() == "crash once" and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    if (wanted() == "crash" or once) and rank == 1:
        raise ValueError("a bad batch")
    if wanted() == "frozen" and rank == 1:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGSTOP)
