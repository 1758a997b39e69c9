"""Builds the fused kernels once for all processes of a machine."""

import time
from pathlib import Path

from torch.utils.file_baton import FileBaton


def build(folder):
    time.sleep(0.5)
    (folder / "fused.so").write_bytes(b"\x7fELF")


def load_fused(cache):
    folder = Path(cache) / "py311_cpu" / "fused"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"loading extension module fused from {folder.name}", flush=True)
    baton = FileBaton(str(folder / "lock"))
    if baton.try_acquire():
        try:
            build(folder)
        finally:
            baton.release()
    else:
        baton.wait()
    return (folder / "fused.so").read_bytes()
