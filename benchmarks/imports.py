"""Peak memory of ranks that import torch at once, with the import lock and without it, side by side.

    python benchmarks/imports.py [--ranks 8] [--turns 2]

Each rank imports torch and makes a tensor, as the beginning of any training program does, and stays until all have
done so. What is told is the most memory that all ranks together had at one moment (proportional set size, so that
shared pages count once), sampled while they import; what they kept in the end; and how long the slowest took. Writes
it to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import step_time

PROGRAM = """
import os, sys, time
import torch
torch.ones(8) @ torch.ones(8)
open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").close()
while not os.path.exists(f"{sys.argv[1]}/end"):
    time.sleep(0.05)
"""
SAMPLE_S = 0.05
MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Import:
    """All ranks together."""

    peak: float
    """Bytes at the worst moment."""
    kept: float
    """Bytes once all had imported."""
    seconds: float
    """Until then."""

    def __str__(self) -> str:
        return (
            f"peak {self.peak / MB:8.0f} MB   kept {self.kept / MB:8.0f} MB   all imported after {self.seconds:5.1f} s"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=8, help="ranks that import at once (default: 8)")
    parser.add_argument("--turns", type=int, default=2, help="runs of each; the median counts (default: 2)")
    parser.add_argument("--no-write", action="store_true", help="print only")
    chosen = parser.parse_args(arguments)
    measured: dict[str, list[Import]] = {"off": [], "on": []}
    for _ in range(chosen.turns):
        for mode, found in measured.items():
            found.append(measure(mode, chosen.ranks))
            print(f"--serialize-imports {mode:<4} {found[-1]}", flush=True)
    medians = {mode: _median(found) for mode, found in measured.items()}
    ratio = medians["on"].peak / medians["off"].peak
    print(f"{chosen.ranks} ranks, {os.cpu_count()} cores: peak ratio {ratio:.2f}")
    if not chosen.no_write:
        path = step_time.RESULTS / f"{time.strftime('%Y-%m-%d')}-imports.md"
        path.write_text(_text(medians, ratio, chosen.ranks, chosen.turns))
        print(f"written: {path.name}")
    return 0


def _median(found: Sequence[Import]) -> Import:
    return Import(*(statistics.median(column) for column in zip(*map(astuple, found), strict=True)))


def _text(medians: dict[str, Import], ratio: float, ranks: int, turns: int) -> str:
    lines = [
        f"# Memory of {ranks} ranks that import torch at once, with the import lock and without it",
        "",
        *step_time.facts(),
        f"- runs of each, in turns, of which the median is told: {turns}",
        "- memory of all ranks together, shared pages counted once (PSS)",
        "",
        "| `--serialize-imports` | peak | kept | all have imported after |",
        "| --- | --- | --- | --- |",
        *(
            f"| {mode} | {found.peak / MB:,.0f} MB | {found.kept / MB:,.0f} MB | {found.seconds:.1f} s |"
            for mode, found in medians.items()
        ),
        "",
        f"**Peak with the lock: {ratio:.2f} times that without it.**",
    ]
    return "\n".join(lines) + "\n"


def measure(mode: str, ranks: int) -> Import:
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
        return Import(peak, kept, seconds)


def _ranks(path: Path) -> list[int]:
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
