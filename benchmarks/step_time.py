"""What the scope costs a step: one job under `torchrun` and one under `rankscope run`, in turns of half a second.

    python benchmarks/step_time.py [--starts 6] [--rounds 24]

Both jobs are started at once and then take turns: all processes of one are stopped (SIGSTOP) while the other runs. A
machine whose speed changes from second to second hits both alike, which whole runs one after another do not allow.
Where a process happens to lie in memory makes it faster or slower for as long as it lives, by more than the scope does:
hence several starts. Prints the median of the ratios of neighbouring turns with its 95 % interval, drawn from starts
and turns, and writes it to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
GOAL = 1.01
TURN_S = 0.5
SETTLE_S = 0.05
"""The beginning of a turn, in which caches are cold and the ranks find each other again."""
START_LIMIT_S = 120.0

JOB = """
import json, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ready, stop, out, width = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
    torch.nn.Linear(width, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(torch.randn(64 * 32, width), batch_size=32)
steps, flag, over = [], torch.zeros(1), False
while not over:
    for inputs in loader:
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        steps.append((begin, time.perf_counter()))
    if rank == 0 and len(steps) == 64:
        open(ready, "w").close()
    flag[0] = rank == 0 and os.path.exists(stop)
    dist.all_reduce(flag)
    over = bool(flag.item())
if rank == 0:
    with open(out, "w") as file:
        json.dump(steps, file)
dist.destroy_process_group()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--starts", type=int, default=6, help="times that both jobs are started (default: 6)")
    parser.add_argument("--rounds", type=int, default=24, help="turns of each job after a start (default: 24)")
    parser.add_argument("--width", type=int, default=512, help="layer width: sets the length of a step (default: 512)")
    parser.add_argument("--no-write", action="store_true", help="print only")
    chosen = parser.parse_args(arguments)
    ratio, low, high, plain_ms, pairs = compare(chosen.starts, chosen.rounds, chosen.width)
    settled = "met" if high <= GOAL else "missed" if low > GOAL else f"met by the median, interval reaches {high:.3f}"
    if low <= GOAL < ratio:
        settled = f"open, interval from {low:.3f}"
    print(f"step under torchrun {plain_ms:.2f} ms; {pairs} pairs of turns in {chosen.starts} starts")
    print(f"step time ratio {ratio:.4f} (95 %: {low:.4f} to {high:.4f}) goal {GOAL:g}: {settled}")
    if not chosen.no_write:
        _write(ratio, low, high, plain_ms, pairs, chosen.starts, settled)
    return 0


def compare(starts: int, rounds: int, width: int, job: str = JOB) -> tuple[float, float, float, float, int]:
    """Ratio of step times, its 95 % interval, a plain step in ms, and the number of pairs of turns."""
    ratios: list[list[float]] = []
    plain: list[float] = []
    for number in range(starts):
        with tempfile.TemporaryDirectory() as folder:
            turns, steps = measure(Path(folder), rounds, width, job)
        medians = {name: [_median_step(steps[name], turn) for turn in turns[name]] for name in turns}
        pairs = [
            (before, after)
            for before, after in zip(medians["torchrun"], medians["rankscope"], strict=True)
            if before is not None and after is not None
        ]
        if not pairs:
            raise SystemExit("no turn held five steps: choose a smaller --width")
        ratios.append([after / before for before, after in pairs])
        plain += [before for before, _ in pairs]
        print(f"start {number + 1}: ratio {statistics.median(ratios[-1]):.4f}", flush=True)
    together = [each for one in ratios for each in one]
    low, high = interval(ratios)
    return statistics.median(together), low, high, 1e3 * statistics.median(plain), len(together)


def measure(
    folder: Path, rounds: int, width: int, job_text: str = JOB
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, list[tuple[float, float]]]]:
    """Turns (begin, end) and steps (begin, end) of each job, on one clock."""
    script = folder / "train.py"
    script.write_text(job_text)
    bin_folder = Path(sys.executable).parent
    commands = {
        "torchrun": [str(bin_folder / "torchrun"), "--standalone"],
        "rankscope": [sys.executable, "-m", "rankscope", "run", "--standalone", "--run-dir", str(folder / "run")],
    }
    jobs: dict[str, subprocess.Popen[bytes]] = {}
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    try:
        for name, launch in commands.items():
            ends = [str(folder / f"{name}.{end}") for end in ("ready", "stop", "json")]
            command = [*launch, "--nproc-per-node", "2", str(script), *ends, str(width)]
            log = (folder / f"{name}.log").open("wb")
            jobs[name] = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_LIMIT_S
        while not all((folder / f"{name}.ready").exists() for name in jobs):
            if time.monotonic() > deadline or any(job.poll() is not None for job in jobs.values()):
                raise SystemExit("a job did not come up")
            time.sleep(0.1)
        trees = {name: processes_below(job.pid) for name, job in jobs.items()}
        for number in range(2 * rounds):
            # ABBA: whatever drifts, drifts for both.
            name, other = ("torchrun", "rankscope") if number % 4 in (0, 3) else ("rankscope", "torchrun")
            send(trees[other], signal.SIGSTOP)
            send(trees[name], signal.SIGCONT)
            begin = time.perf_counter()
            time.sleep(TURN_S)
            turns[name].append((begin, time.perf_counter()))
        for name, tree in trees.items():
            send(tree, signal.SIGCONT)
            (folder / f"{name}.stop").touch()
        for name, job in jobs.items():
            if job.wait(60) != 0:
                sys.stderr.write((folder / f"{name}.log").read_text(errors="replace"))
                raise SystemExit(f"the job under {name} ended with {job.returncode}")
        return turns, {name: json.loads((folder / f"{name}.json").read_text()) for name in jobs}
    finally:
        for job in jobs.values():
            if job.poll() is None:
                tree = processes_below(job.pid)
                send(tree, signal.SIGKILL)
                send(tree, signal.SIGCONT)


def processes_below(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _median_step(steps: list[tuple[float, float]], turn: tuple[float, float]) -> float | None:
    begin, end = turn[0] + SETTLE_S, turn[1]
    inside = [after - before for before, after in steps if begin <= before and after <= end]
    return statistics.median(inside) if len(inside) >= 5 else None


def interval(starts: list[list[float]]) -> tuple[float, float]:
    draw = random.Random(0)
    medians = sorted(
        statistics.median(each for one in draw.choices(starts, k=len(starts)) for each in draw.choices(one, k=len(one)))
        for _ in range(4000)
    )
    return medians[100], medians[-101]


def _write(ratio: float, low: float, high: float, plain_ms: float, pairs: int, starts: int, settled: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    date = time.strftime("%Y-%m-%d")
    versions = {name: metadata.version(name) for name in ("rankscope", "torch")} | {"python": platform.python_version()}
    text = f"""# Step time of `rankscope run` over `torchrun`, in turns of {TURN_S:g} s

- date: {date}
- versions: {", ".join(f"{name} {version}" for name, version in versions.items())}
- machine: {platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}
- 2 ranks each (gloo), {pairs} pairs of turns in {starts} starts, step under torchrun {plain_ms:.2f} ms
- **ratio {ratio:.4f}** (95 %: {low:.4f} to {high:.4f}); goal {GOAL:g}: {settled}
"""
    (RESULTS / f"{date}-step-time.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
