"""What the scope costs a healthy job: the same script under `torchrun` and under `rankscope run`.

    python benchmarks/overhead.py [--starts 30] [--pairs 12]

The step time comes from two jobs that run side by side and take turns of eight steps, started many times: see
step_time.py and step_job.py, also for why. The time to the first step comes from whole runs, one launcher after the
other; the ratio of a pair is taken before the median. Prints both, and writes them to benchmarks/results/. `--null`
puts `torchrun` in the place of `rankscope run`: what the measure tells where there is nothing to tell.
"""

from __future__ import annotations

import argparse
import json
import math
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

import step_time

RANKS = 2
STEPS = 50
"""Of a whole run."""
WIDTH = 512
STEP_GOAL = 1.01
START_GOAL = 1.15
TIMEOUT_S = 300.0
PAUSE_S = 1.0

JOB = """
import json, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

launched, steps, width = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
torch.manual_seed(0)
batch = 32
count = steps * batch * dist.get_world_size()
samples = TensorDataset(torch.randn(count, width), torch.randn(count, 1))
loader = DataLoader(samples, batch_size=batch, sampler=DistributedSampler(samples))
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
    torch.nn.Linear(width, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
first = 0.0
for number, (inputs, targets) in enumerate(loader):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    if number == 0:
        first = time.time() - launched
if dist.get_rank() == 0:
    with open(sys.argv[4], "w") as file:
        json.dump({"first_step_s": first}, file)
dist.destroy_process_group()
time.sleep(0.5)  # a gloo thread that lets go of the last collective after Python has gone would abort the process
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the script, as the script itself measured it."""

    launcher: str
    pair: int
    first_step_s: float
    """From the launch of the command to the end of the first step."""
    command_cpu_s: float
    """Processor time of the whole command, launcher and ranks."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """`rankscope run` over `torchrun`: the median over pairs, and its 95 % interval."""

    median: float
    low: float
    high: float
    goal: float | None
    """None: told for information."""

    @property
    def judged(self) -> str:
        """Settled only where the whole interval says so."""
        if self.goal is None:
            return ""
        settled = "met" if self.high <= self.goal else "missed" if self.low > self.goal else "open, too few pairs"
        return f"goal {self.goal:g}: {settled}"

    def __str__(self) -> str:
        return f"{self.median:.4f} (95 %: {self.low:.4f} to {self.high:.4f}) {self.judged}".rstrip()


FIGURES = {
    "time to first step": ("first_step_s", START_GOAL),
    "processor time, whole command": ("command_cpu_s", None),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    step_time.add_options(parser)
    parser.add_argument("--pairs", type=int, default=12, help="whole runs of each launcher (default: 12)")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        runs = measure(Path(folder), chosen.pairs, null=chosen.null)
    ratios = {name: ratio(runs, figure, goal) for name, (figure, goal) in FIGURES.items()}
    for name, value in ratios.items():
        print(f"{name:32}  {value}")
    step = step_time.compare(chosen.starts, chosen.turns, chosen.layers, null=chosen.null)
    settled = step_time.told(step, STEP_GOAL, null=chosen.null)
    if not chosen.no_write:
        write(runs, ratios, step, settled, vars(chosen))
    missed = any(value.judged.endswith("missed") for value in ratios.values())
    return 1 if not chosen.null and (missed or step.step.judged(STEP_GOAL) == "missed") else 0


def measure(folder: Path, pairs: int, *, null: bool) -> list[Run]:
    script = folder / "train.py"
    script.write_text(JOB)
    runs = []
    for pair in range(-1, pairs):
        # The first of a pair finds caches colder: who is first changes from pair to pair.
        order = ("torchrun", "rankscope") if pair % 2 == 0 else ("rankscope", "torchrun")
        for launcher in order:
            run = run_once(launcher, pair, script, steps=STEPS if pair >= 0 else 1, null=null)
            if pair >= 0:  # The pair before the first only fills the disk cache.
                print(
                    f"pair {pair}  {launcher:9}  first step {run.first_step_s:6.2f} s   "
                    f"processor {run.command_cpu_s:6.2f} s in all",
                    flush=True,
                )
                runs.append(run)
    return runs


def run_once(launcher: str, pair: int, script: Path, *, steps: int, null: bool) -> Run:
    folder = script.parent
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = {
        "torchrun": [sys.executable, "-m", "torch.distributed.run"],
        "rankscope": [sys.executable, "-m", "rankscope", "run", "--run-dir", str(folder / "run")],
    }["torchrun" if null else launcher]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # Users have compiled modules of both; the first pair makes them.
    time.sleep(PAUSE_S)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    options = ["--nproc-per-node", str(RANKS)]
    job = [str(script), repr(time.time()), str(steps), str(WIDTH), str(result)]
    ended = subprocess.run(
        [*command, *options, *job], env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if ended.returncode != 0:
        raise SystemExit(f"{launcher} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(launcher, pair, command_cpu_s=used, **json.loads(result.read_text()))


def ratio(runs: Sequence[Run], figure: str, goal: float | None) -> Ratio:
    """The median over pairs of the pair's own ratio. Its interval lies between two of the ratios, whatever their
    distribution: the true median is below the lowest k of n with the chance of fewer than k heads in n throws."""
    by_pair: dict[int, dict[str, float]] = {}
    for run in runs:
        by_pair.setdefault(run.pair, {})[run.launcher] = getattr(run, figure)
    ratios = sorted(pair["rankscope"] / pair["torchrun"] for pair in by_pair.values())
    count, left_out = len(ratios), 0
    while 2 * sum(math.comb(count, heads) for heads in range(left_out + 2)) <= 0.05 * 2**count:
        left_out += 1
    return Ratio(statistics.median(ratios), ratios[left_out], ratios[-1 - left_out], goal)


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


def write(
    runs: Sequence[Run],
    ratios: dict[str, Ratio],
    step: step_time.Comparison,
    settled: str,
    options: dict[str, object],
) -> None:
    known = facts()
    step_time.RESULTS.mkdir(exist_ok=True)
    stem = step_time.RESULTS / f"{known['date']}-overhead{'-null' if options['null'] else ''}"
    content = {
        **known,
        "options": options,
        "step time": asdict(step),
        "ratios": {name: asdict(value) for name, value in ratios.items()},
        "runs": [asdict(run) for run in runs],
    }
    stem.with_suffix(".json").write_text(json.dumps(content, indent=2) + "\n")
    second = "torchrun" if options["null"] else "rankscope run"
    lines = [
        f"# Overhead of `{second}` over `torchrun`",
        "",
        *(f"- {name}: {value}" for name, value in known.items()),
        "",
        "Steps, of two jobs that take turns:",
        "",
        *step_time.lines_of(step, settled),
        "",
        f"Starts, of whole runs: {options['pairs']} pairs, one launcher after the other, {STEPS} steps each.",
        "",
        "| ratio | median of the pairs | lowest | highest | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, value in ratios.items():
        lines.append(f"| {name} | {value.median:.4f} | {value.low:.4f} | {value.high:.4f} | {value.judged} |")
    lines += ["", "| pair | launcher | time to first step | whole command |", "| --- | --- | --- | --- |"]
    for run in runs:
        lines.append(f"| {run.pair} | {run.launcher} | {run.first_step_s:.2f} s | {run.command_cpu_s:.2f} s |")
    stem.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print(f"written: {stem.name}.json and .md")


if __name__ == "__main__":
    sys.exit(main())
