"""A terminal that can be looked at, and a job worth looking at: a slow rank, and on a sign a hang."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator

import pytest

TRAINS = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    time.sleep(0.2 if rank == 2 else 0.05)
    print("<script>document.title = 'taken over'</script>\\x1b]0;taken over\\x07", rank, flush=True)
    if rank == 3 and os.path.exists(sys.argv[1]):
        time.sleep(1000)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
"""
"""Rank 2 is slow; from when the file of its first argument is there, rank 3 sleeps."""


@pytest.fixture
def tmux() -> Iterator[Callable[..., str]]:
    """Runs a command of tmux, on a server of this test alone."""
    if shutil.which("tmux") is None:
        pytest.skip("not installed: tmux")
    name = f"rankscope-{uuid.uuid4().hex[:8]}"

    def command(*words: str) -> str:
        done = subprocess.run(["tmux", "-L", name, *words], capture_output=True, text=True, timeout=20, check=False)
        return done.stdout

    yield command
    command("kill-server")


def row(picture: str, rank: int) -> str:
    """Of a board."""
    return next((line for line in picture.splitlines() if line.startswith(f"{rank} ")), "")
