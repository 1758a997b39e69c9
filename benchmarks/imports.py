"""Peak memory of ranks that import torch at once, with the import lock and without it, side by side.

    python benchmarks/imports.py [--ranks 8]

Each rank imports torch and makes a tensor, as the beginning of any training program does, and stays until all have
done so. What is told is the most memory that all ranks together had at one moment (proportional set size, so that
shared pages count once), sampled while they import; what they kept in the end; and how long the slowest took.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

PROGRAM = """
import os, sys, time
import torch
torch.ones(8) @ torch.ones(8)
open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").close()
while not os.path.exists(f"{sys.argv[1]}/end"):
    time.sleep(0.05)
"""
SAMPLE_S = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=8, help="ranks that import at once (default: 8)")
    chosen = parser.parse_args(arguments)
    print(f"{chosen.ranks} ranks, {os.cpu_count()} cores")
    found = {mode: measure(mode, chosen.ranks) for mode in ("off", "on")}
    for mode, (peak, kept, seconds) in found.items():
        print(
            f"--serialize-imports {mode:<4} peak {peak / (1 << 20):8.0f} MB   kept {kept / (1 << 20):8.0f} MB   "
            f"all imported after {seconds:5.1f} s"
        )
    print(f"peak ratio {found['on'][0] / found['off'][0]:.2f}")
    return 0


def measure(mode: str, ranks: int) -> tuple[int, int, float]:
    """The ranks' peak memory in bytes, what they kept once all had imported, and the seconds until then."""
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder) / "done"
        done.mkdir()
        script = Path(folder) / "imports.py"
        script.write_text(PROGRAM)
        command = [sys.executable, "-m", "rankscope", "run", "--standalone", "--stages", "off"]
        command += [
            "--serialize-imports",
            mode,
            "--run-dir",
            f"{folder}/run",
            "--nproc-per-node",
            str(ranks),
            str(script),
            str(done),
        ]
        job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak = kept = 0
        begin = seconds = 0.0
        while job.poll() is None:
            pids = _ranks(Path(folder) / "run" / "ranks.json")
            if pids and not begin:
                begin = time.monotonic()
            if not seconds and len(list(done.iterdir())) == ranks:
                seconds = time.monotonic() - begin
                kept = sum(map(_memory, pids))
                (done / "end").touch()
            peak = max(peak, sum(map(_memory, pids)))
            time.sleep(SAMPLE_S)
        if job.returncode != 0:
            raise SystemExit(f"the job ended with {job.returncode}")
        return peak, kept, seconds


def _ranks(path: Path) -> list[int]:
    import json

    try:
        return list(json.loads(path.read_text()).values())
    except (FileNotFoundError, ValueError):
        return []  # not started yet, or being written


def _memory(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0  # it has ended
    return 0


if __name__ == "__main__":
    sys.exit(main())
