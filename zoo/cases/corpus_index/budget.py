"""Gives each rank its own memory controller, as the cluster does for a job."""

import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def apply(rank, limit_bytes):
    """Moves this process into a controller of `limit_bytes`. Needs a writable control-group tree."""
    if (ROOT / "cgroup.controllers").exists():
        folder, limit_file, swap_file = ROOT / f"corpus-{rank}", "memory.max", "memory.swap.max"
        swap = "0"
    else:
        folder, limit_file, swap_file = ROOT / "memory" / f"corpus-{rank}", "memory.limit_in_bytes", None
        swap = ""
    folder.mkdir(exist_ok=True)
    (folder / limit_file).write_text(str(limit_bytes))
    if swap_file is not None and (folder / swap_file).exists():
        (folder / swap_file).write_text(swap)
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    return folder


def release(folders):
    """Leaves this process's controller and removes all that nobody uses any more."""
    (folders[0].parent / "cgroup.procs").write_text(str(os.getpid()))
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            print(f"{folder} is still in use", flush=True)
