"""What the scope costs a healthy job: the same script under `torchrun` and under `rankscope run`, in turns.

    python benchmarks/overhead.py [--pairs 6] [--steps 300]

Prints one line per run and the ratios, and writes both to benchmarks/results/. The two launchers take turns within one
run, so that whatever else the machine does hits both; the ratio of a pair is taken before the median.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
RANKS = 2
WARM_UP_STEPS = 50
STEP_GOAL = 1.01
START_GOAL = 1.15
TIMEOUT_S = 300.0
PAUSE_S = 1.0

JOB = """
import json, os, statistics, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

launched, warm_up, steps, width = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("gloo")
torch.manual_seed(0)
batch = 32
count = (warm_up + steps) * batch * dist.get_world_size()
samples = TensorDataset(torch.randn(count, width), torch.randn(count, 1))
loader = DataLoader(samples, batch_size=batch, sampler=DistributedSampler(samples))
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
    torch.nn.Linear(width, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
times, last, first, processor = [], time.perf_counter(), 0.0, 0.0
for number, (inputs, targets) in enumerate(loader):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    if number == 0:
        first = time.time() - launched
    now = time.perf_counter()
    if number >= warm_up:
        times.append(now - last)
    else:
        processor = time.process_time()
    last = now
if dist.get_rank() == 0:
    with open(sys.argv[5], "w") as file:
        json.dump({"first_step_s": first, "step_s": statistics.median(times),
                   "step_cpu_s": (time.process_time() - processor) / len(times)}, file)
dist.destroy_process_group()
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the script, as the script itself measured it."""

    launcher: str
    pair: int
    first_step_s: float
    """From the launch of the command to the end of the first step."""
    step_s: float
    """Median of all steps after the warm-up."""
    step_cpu_s: float
    """Processor time of rank 0 per step: what is left of the picture when the machine is busy with other things."""
    command_cpu_s: float
    """Processor time of the whole command, launcher and ranks."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """`rankscope run` over `torchrun`."""

    median: float
    low: float
    high: float
    goal: float | None
    """None: told for information."""

    @property
    def judged(self) -> str:
        """Settled only where all pairs agree: of six, the range misses the true median once in 32 times."""
        if self.goal is None:
            return ""
        settled = "met" if self.high <= self.goal else "missed" if self.low > self.goal else "open, pairs disagree"
        return f"goal {self.goal:g}: {settled}"

    def __str__(self) -> str:
        return f"{self.median:.4f} (pairs: {self.low:.4f} to {self.high:.4f}) {self.judged}".rstrip()


FIGURES = {
    "step time": ("step_s", STEP_GOAL),
    "time to first step": ("first_step_s", START_GOAL),
    "processor time per step, rank 0": ("step_cpu_s", None),
    "processor time, whole command": ("command_cpu_s", None),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=6, help="runs of each launcher (default: 6)")
    parser.add_argument("--steps", type=int, default=300, help="measured steps per run (default: 300)")
    parser.add_argument("--width", type=int, default=512, help="layer width: sets the length of a step (default: 512)")
    parser.add_argument("--no-write", action="store_true", help="print only")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        runs = measure(Path(folder), chosen.pairs, chosen.steps, chosen.width)
    ratios = {name: ratio(runs, figure, goal) for name, (figure, goal) in FIGURES.items()}
    for name, value in ratios.items():
        print(f"{name:32}  {value}")
    if not chosen.no_write:
        write(runs, ratios, vars(chosen))
    return 1 if any(value.judged.endswith("missed") for value in ratios.values()) else 0


def measure(folder: Path, pairs: int, steps: int, width: int) -> list[Run]:
    script = folder / "train.py"
    script.write_text(JOB)
    runs = []
    for pair in range(-1, pairs):
        # The first of a pair finds caches colder: who is first changes from pair to pair.
        order = ("torchrun", "rankscope") if pair % 2 == 0 else ("rankscope", "torchrun")
        for launcher in order:
            run = run_once(launcher, pair, script, steps=steps if pair >= 0 else 1, width=width)
            if pair >= 0:  # The pair before the first only fills the disk cache.
                print(
                    f"pair {pair}  {launcher:9}  first step {run.first_step_s:6.2f} s   "
                    f"step {run.step_s * 1e3:7.3f} ms   "
                    f"processor {run.step_cpu_s * 1e3:7.3f} ms a step, {run.command_cpu_s:6.2f} s in all",
                    flush=True,
                )
                runs.append(run)
    return runs


def run_once(launcher: str, pair: int, script: Path, *, steps: int, width: int) -> Run:
    folder = script.parent
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = {
        "torchrun": [sys.executable, "-m", "torch.distributed.run"],
        "rankscope": [sys.executable, "-m", "rankscope", "run", "--run-dir", str(folder / "run")],
    }[launcher]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # Users have compiled modules of both; the first pair makes them.
    time.sleep(PAUSE_S)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    options = ["--nproc-per-node", str(RANKS)]
    job = [str(script), repr(time.time()), str(WARM_UP_STEPS), str(steps), str(width), str(result)]
    ended = subprocess.run(
        [*command, *options, *job], env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if ended.returncode != 0:
        raise SystemExit(f"{launcher} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(launcher, pair, command_cpu_s=used, **json.loads(result.read_text()))


def ratio(runs: Sequence[Run], figure: str, goal: float | None) -> Ratio:
    """The median over pairs of the pair's own ratio, and the extremes."""
    by_pair: dict[int, dict[str, float]] = {}
    for run in runs:
        by_pair.setdefault(run.pair, {})[run.launcher] = getattr(run, figure)
    ratios = sorted(pair["rankscope"] / pair["torchrun"] for pair in by_pair.values())
    return Ratio(statistics.median(ratios), ratios[0], ratios[-1], goal)


def facts() -> dict[str, str]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "rankscope": metadata.version("rankscope"),
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "ranks": f"{RANKS} (gloo)",
        "load average of the last 5 minutes": f"{os.getloadavg()[1]:.1f}",
    }


def write(runs: Sequence[Run], ratios: dict[str, Ratio], options: dict[str, object]) -> None:
    known = facts()
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"{known['date']}-overhead"
    content = {
        **known,
        "options": options,
        "ratios": {name: asdict(value) for name, value in ratios.items()},
        "runs": [asdict(run) for run in runs],
    }
    stem.with_suffix(".json").write_text(json.dumps(content, indent=2) + "\n")
    lines = [
        "# Overhead of `rankscope run` over `torchrun`",
        "",
        *(f"- {name}: {value}" for name, value in known.items()),
        f"- {options['pairs']} pairs in turns, {options['steps']} steps measured after {WARM_UP_STEPS} of warm-up",
        "",
        "| ratio | median of the pairs | lowest | highest | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, value in ratios.items():
        lines.append(f"| {name} | {value.median:.4f} | {value.low:.4f} | {value.high:.4f} | {value.judged} |")
    lines += [
        "",
        "| pair | launcher | time to first step | median step | processor time per step | whole command |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        lines.append(
            f"| {run.pair} | {run.launcher} | {run.first_step_s:.2f} s | {run.step_s * 1e3:.3f} ms "
            f"| {run.step_cpu_s * 1e3:.3f} ms | {run.command_cpu_s:.2f} s |"
        )
    stem.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print(f"written: {stem}.json and .md")


if __name__ == "__main__":
    sys.exit(main())
