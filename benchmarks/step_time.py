"""What the scope costs a step: one job under `torchrun` and one under `rankscope run`, in short turns.

    python benchmarks/step_time.py [--starts 30] [--turns 40] [--null]

Both jobs are started at once, and then make eight steps each in turn: a machine whose speed changes from second to
second hits both alike, which whole runs one after another do not allow. Where the data of a process happen to lie makes
it faster or slower for as long as it lives, by more than the scope does: many starts with few turns tell more than few
with many. See step_job.py for what else keeps steps even. Prints the median over the starts of their own median ratio
with its 95 % interval, and writes it to benchmarks/results/. `--null` compares `torchrun` with `torchrun`, which must
come out as 1 within the interval: what the measure itself can tell.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import step_job
from rankscope import __version__

RESULTS = Path(__file__).resolve().parent / "results"
GOAL = 1.01
RANKS = 2
MORE_OPTIONS: list[str] = []
"""For `rankscope run`."""
START_LIMIT_S = 120.0
TURNS_LIMIT_S = 2.0
"""For a turn of each job, on a machine that does other things as well."""
LEAST_STARTS = 6
"""For an interval to tell how much starts differ."""
SETTLE = 1
"""Steps at the beginning of a turn that do not count: what the other job did not leave in the caches."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of medians of neighbouring turns; the median over the starts, and its 95 % interval."""

    median: float
    low: float
    high: float

    def judged(self, goal: float) -> str:
        if self.high <= goal:
            return "met"
        if self.low > goal:
            return "missed"
        if self.median <= goal:
            return f"met by the median, interval reaches {self.high:.4f}"
        return f"open, interval from {self.low:.4f}"

    def __str__(self) -> str:
        return f"{self.median:.4f} (95 %: {self.low:.4f} to {self.high:.4f})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second job over the first."""

    step: Ratio
    """Wall time of a step."""
    mean: Ratio
    """The same of the mean over all steps of a start: with what is done once in many steps, and with every
    interruption from outside."""
    processor: Ratio
    """Processor time of rank 0's main thread in a step."""
    first_ms: float
    """A step of the first job."""
    starts: tuple[float, ...]
    """The step ratio of each start."""
    pairs: int
    """Pairs of turns."""

    @property
    def spread(self) -> float:
        """Standard deviation between starts."""
        return statistics.stdev(self.starts) if len(self.starts) > 1 else 0.0


Turn = list[tuple[float, float]]
"""Wall time and processor time of the main thread, of each step."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    chosen = parser.parse_args(arguments)
    found = compare(chosen.starts, chosen.turns, chosen.layers, null=chosen.null)
    settled = told(found, GOAL, null=chosen.null)
    if not chosen.no_write:
        stem = "step-time-null" if chosen.null else "step-time"
        title = "`torchrun` over `torchrun`: what the measure tells where there is nothing to tell"
        _write(stem, title if chosen.null else "Step time of `rankscope run` over `torchrun`", found, settled)
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--starts", type=int, default=30, help="times that both jobs are started (default: 30)")
    parser.add_argument("--turns", type=int, default=40, help="turns of each job after a start (default: 40)")
    layers = step_job.LAYERS
    parser.add_argument("--layers", type=int, default=layers, help=f"of the network: the length of a step ({layers})")
    parser.add_argument("--null", action="store_true", help="compare torchrun with torchrun: the noise of the measure")
    parser.add_argument("--no-write", action="store_true", help="print only")


def told(found: Comparison, goal: float, *, null: bool) -> str:
    """Prints what was found; returns whether the goal is met, in words."""
    if null:
        settled = "1 lies within the interval" if found.step.low <= 1 <= found.step.high else "BIASED: 1 lies outside"
    elif len(found.starts) < LEAST_STARTS:
        settled = f"goal {goal:g}: open, fewer than {LEAST_STARTS} starts"
    else:
        settled = f"goal {goal:g}: {found.step.judged(goal)}"
    print(f"step under torchrun {found.first_ms:.2f} ms; {found.pairs} pairs of turns in {len(found.starts)} starts")
    print(f"step time ratio {found.step}; {settled}; standard deviation between starts {found.spread:.4f}")
    print(f"of the mean step {found.mean}")
    print(f"processor time of the main thread {found.processor}")
    return settled


def compare(starts: int, turns: int, layers: int, job: str | None = None, *, null: bool = False) -> Comparison:
    """`rankscope run` over `torchrun`, or where `null` is given `torchrun` over `torchrun`."""
    steps: list[list[float]] = []
    means: list[list[float]] = []
    processor: list[list[float]] = []
    first: list[float] = []
    for number in range(starts):
        with tempfile.TemporaryDirectory() as folder:
            made = measure(Path(folder), turns, layers, job, swapped=number % 2 == 1, null=null)
        pairs = [(_medians(one), _medians(two)) for one, two in zip(*made, strict=True)]
        steps.append([two[0] / one[0] for one, two in pairs])
        means.append([_mean(made[1]) / _mean(made[0])])
        processor.append([two[1] / one[1] for one, two in pairs])
        first += [one[0] for one, _ in pairs]
        print(
            f"start {number + 1}: step {statistics.median(steps[-1]):.4f}, mean step {means[-1][0]:.4f}, "
            f"processor time {statistics.median(processor[-1]):.4f}",
            flush=True,
        )
    return Comparison(
        step=_ratio(steps),
        mean=_ratio(means),
        processor=_ratio(processor),
        first_ms=1e3 * statistics.median(first),
        starts=tuple(map(statistics.median, steps)),
        pairs=sum(map(len, steps)),
    )


def measure(
    folder: Path, turns: int, layers: int, job_text: str | None, *, swapped: bool, null: bool
) -> tuple[list[Turn], list[Turn]]:
    """The turns of each job. Where `swapped`, the second is started and has its turn first."""
    script = folder / "train.py"
    script.write_text(job_text or step_job.in_turns())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    scope = [sys.executable, "-m", "rankscope", "run", "--standalone", "--run-dir", str(folder / "run"), *MORE_OPTIONS]
    # Names of one length: arguments move the stack.
    commands = {"one": torchrun, "two": torchrun if null else scope}
    order = ["two", "one"] if swapped else ["one", "two"]
    for name in order:
        for rank in range(RANKS):
            os.mkfifo(folder / f"{name}.{rank}")
    jobs: dict[str, subprocess.Popen[bytes]] = {}
    first_pipes = [os.open(folder / f"{order[0]}.{rank}", os.O_RDWR) for rank in range(RANKS)]
    try:
        for name, other in zip(order, reversed(order), strict=True):
            command = [*commands[name], "--nproc-per-node", str(RANKS), str(script)]
            command += [str(folder / f"{name}.json"), str(layers), str(folder / name), str(folder / other), str(turns)]
            with (folder / f"{name}.log").open("wb") as log:
                jobs[name] = subprocess.Popen(command, stdout=log, stderr=log, env=step_job.environment())
        _wait(folder, jobs, START_LIMIT_S, lambda: all((folder / f"{name}.json.ready").exists() for name in jobs))
        for pipe in first_pipes:
            os.write(pipe, b"!")
        limit_s = START_LIMIT_S + turns * TURNS_LIMIT_S
        _wait(folder, jobs, limit_s, lambda: all(job.poll() == 0 for job in jobs.values()))
        one, two = (json.loads((folder / f"{name}.json").read_text()) for name in commands)
        return one, two
    finally:
        for pipe in first_pipes:
            os.close(pipe)
        for job in jobs.values():
            if job.poll() is None:
                send(processes_below(job.pid), signal.SIGKILL)
                job.wait()


def _wait(folder: Path, jobs: dict[str, subprocess.Popen[bytes]], limit_s: float, done: Callable[[], bool]) -> None:
    """A job that fails leaves the other waiting for its turn."""
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline or any(job.poll() for job in jobs.values()):
            logs = "".join((folder / f"{name}.log").read_text(errors="replace") for name in jobs)
            raise SystemExit(f"a job failed or took too long:\n{logs}")
        time.sleep(0.1)


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


def _medians(turn: Turn) -> tuple[float, float]:
    """Wall time and processor time of a step in that turn."""
    return statistics.median(wall for wall, _ in turn[SETTLE:]), statistics.median(used for _, used in turn[SETTLE:])


def _mean(turns: list[Turn]) -> float:
    return statistics.mean(wall for turn in turns for wall, _ in turn[SETTLE:])


def _ratio(starts: list[list[float]]) -> Ratio:
    low, high = interval(starts)
    return Ratio(statistics.median(map(statistics.median, starts)), low, high)


def interval(starts: list[list[float]]) -> tuple[float, float]:
    """95 % of the median over starts of the medians over turns, both drawn again and again."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(
            statistics.median(draw.choices(one, k=len(one))) for one in draw.choices(starts, k=len(starts))
        )
        for _ in range(4000)
    )
    return medians[100], medians[-101]


def facts() -> list[str]:
    """Lines for a result file: when, with what, on what."""
    versions = {"rankscope": __version__, "torch": metadata.version("torch"), "python": platform.python_version()}
    return [
        f"- date: {time.strftime('%Y-%m-%d')}",
        f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}",
        f"- machine: {platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}; "
        f"load average of the last 5 minutes {os.getloadavg()[1]:.1f}",
    ]


def lines_of(found: Comparison, settled: str) -> list[str]:
    """The same, about a comparison."""
    return [
        f"- {RANKS} ranks each, turns of {step_job.TURN} steps: {found.pairs} "
        f"pairs of turns in {len(found.starts)} starts; step under torchrun {found.first_ms:.2f} ms",
        f"- **step time ratio {found.step}**; {settled}",
        f"- of the mean step, interruptions included: ratio {found.mean}",
        f"- processor time of rank 0's main thread in a step: ratio {found.processor}",
        f"- standard deviation between starts {found.spread:.4f}; step time ratio of each: "
        + ", ".join(f"{each:.4f}" for each in found.starts),
    ]


def _write(stem: str, title: str, found: Comparison, settled: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{stem}.md"
    path.write_text("\n".join([f"# {title}", "", *facts(), *lines_of(found, settled)]) + "\n")
    print(f"written: {path.name}")


if __name__ == "__main__":
    sys.exit(main())
