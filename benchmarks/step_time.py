"""What the scope costs a step: one job under `torchrun` and one under `rankscope run`, in short turns.

    python benchmarks/step_time.py [--starts 20] [--rounds 8] [--null]

Both jobs are started at once and then take turns: all processes of one are stopped (SIGSTOP) while the other runs. A
machine whose speed changes from second to second hits both alike, which whole runs one after another do not allow.
Where a process happens to lie in memory makes it faster or slower for as long as it lives, by more than the scope does.
Hence both jobs are started alike as far as can be (see `started_alike`), and often: many starts with few turns tell
more than few with many. Prints the median over the starts of their own median ratio with its 95 % interval, and writes
it to benchmarks/results/. `--null` compares `torchrun` with `torchrun`, which must come out as 1 within the interval:
what the measure itself can tell.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
GOAL = 1.01
TURN_S = 0.5
SETTLE_S = 0.05
"""The beginning of a turn, in which caches are cold and the ranks find each other again."""
START_LIMIT_S = 120.0
LEAST_STEPS = 5
"""In a turn, for its median to count."""

# Before torch is imported, so that all threads of the rank stay on its core. Which cores the threads of two ranks share
# would otherwise be decided anew at every start.
PINNED = """
import os
_cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {_cores[int(os.environ["LOCAL_RANK"]) % len(_cores)]})
"""

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
        begin, used = time.perf_counter(), time.thread_time()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        steps.append((begin, time.perf_counter(), time.thread_time() - used))
    if rank == 0 and len(steps) == 64:
        open(ready, "w").close()
    flag[0] = rank == 0 and os.path.exists(stop)
    dist.all_reduce(flag)
    over = bool(flag.item())
if rank == 0:
    with open(out, "w") as file:
        json.dump(steps, file)
dist.destroy_process_group()
time.sleep(0.5)  # a gloo thread that lets go of the last collective after Python has gone would abort the process
"""


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
    processor: Ratio
    """Processor time of rank 0's main thread in a step: holds on a busy machine too, but does not see what others
    take from the step."""
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


Step = tuple[float, float, float]
"""Begin, end, processor time of the main thread."""
Turn = tuple[float, float]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser, width=512)
    chosen = parser.parse_args(arguments)
    found = compare(chosen.starts, chosen.rounds, chosen.width, null=chosen.null)
    settled = told(found, GOAL, null=chosen.null)
    if not chosen.no_write:
        stem = "step-time-null" if chosen.null else "step-time"
        title = "`torchrun` over `torchrun`: what the measure tells where there is nothing to tell"
        _write(stem, title if chosen.null else "Step time of `rankscope run` over `torchrun`", found, settled)
    return 0


def add_options(parser: argparse.ArgumentParser, *, width: int, starts: int = 20) -> None:
    parser.add_argument("--starts", type=int, default=starts, help=f"times that both jobs are started ({starts})")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each job after a start (default: 8)")
    parser.add_argument("--width", type=int, default=width, help=f"layer width: the length of a step ({width})")
    parser.add_argument("--null", action="store_true", help="compare torchrun with torchrun: the noise of the measure")
    parser.add_argument("--no-write", action="store_true", help="print only")


def told(found: Comparison, goal: float, *, null: bool) -> str:
    """Prints what was found; returns whether the goal is met, in words."""
    if null:
        settled = "1 lies within the interval" if found.step.low <= 1 <= found.step.high else "BIASED: 1 lies outside"
    else:
        settled = f"goal {goal:g}: {found.step.judged(goal)}"
    print(f"step under torchrun {found.first_ms:.2f} ms; {found.pairs} pairs of turns in {len(found.starts)} starts")
    print(f"step time ratio {found.step}; {settled}; standard deviation between starts {found.spread:.4f}")
    print(f"processor time of the main thread {found.processor}")
    return settled


def compare(starts: int, rounds: int, width: int, job: str = JOB, *, null: bool = False) -> Comparison:
    """`rankscope run` over `torchrun`, or where `null` is given `torchrun` over `torchrun`."""
    steps: list[list[float]] = []
    processor: list[list[float]] = []
    first: list[float] = []
    for number in range(starts):
        with tempfile.TemporaryDirectory() as folder:
            turns, made = measure(Path(folder), rounds, width, job, null=null)
        medians = [[_medians(made[name], turn) for turn in turns[name]] for name in turns]
        pairs = [(one, two) for one, two in zip(*medians, strict=True) if one is not None and two is not None]
        if not pairs:
            raise SystemExit(f"no turn held {LEAST_STEPS} steps: choose a smaller --width")
        steps.append([two[0] / one[0] for one, two in pairs])
        processor.append([two[1] / one[1] for one, two in pairs])
        first += [one[0] for one, _ in pairs]
        print(
            f"start {number + 1}: step {statistics.median(steps[-1]):.4f}, "
            f"processor time {statistics.median(processor[-1]):.4f}",
            flush=True,
        )
    return Comparison(
        step=_ratio(steps),
        processor=_ratio(processor),
        first_ms=1e3 * statistics.median(first),
        starts=tuple(map(statistics.median, steps)),
        pairs=sum(map(len, steps)),
    )


def started_alike() -> tuple[list[str], dict[str, str]]:
    """A command to put before both, and their environment: the same addresses and the same hashes at every start, one
    heap in huge pages where the kernel has them (the physical pages of a 4 kB mapping, and with them which data fight
    for the same cache lines, are another at every start), and one thread for arithmetic."""
    environment = os.environ | {
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.arena_max=1",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # Users have compiled modules of both.
    setarch = shutil.which("setarch")
    fixed = setarch is not None and subprocess.run([setarch, "-R", "true"], check=False).returncode == 0
    return [setarch, "-R"] if setarch is not None and fixed else [], environment


def measure(
    folder: Path, rounds: int, width: int, job_text: str = JOB, *, null: bool = False
) -> tuple[dict[str, list[Turn]], dict[str, list[Step]]]:
    """Turns and steps of each job, on one clock."""
    script = folder / "train.py"
    script.write_text(PINNED + job_text)
    before, environment = started_alike()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    scope = [sys.executable, "-m", "rankscope", "run", "--standalone", "--run-dir", str(folder / "run")]
    commands = {"first": torchrun, "second": torchrun if null else scope}
    jobs: dict[str, subprocess.Popen[bytes]] = {}
    turns: dict[str, list[Turn]] = {name: [] for name in commands}
    try:
        for name, launch in commands.items():
            ends = [str(folder / f"{name}.{end}") for end in ("ready", "stop", "json")]
            command = [*before, *launch, "--nproc-per-node", "2", str(script), *ends, str(width)]
            with (folder / f"{name}.log").open("wb") as log:
                jobs[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + START_LIMIT_S
        while not all((folder / f"{name}.ready").exists() for name in jobs):
            if time.monotonic() > deadline or any(job.poll() is not None for job in jobs.values()):
                logs = "".join((folder / f"{name}.log").read_text(errors="replace") for name in jobs)
                raise SystemExit(f"a job did not come up:\n{logs}")
            time.sleep(0.1)
        trees = {name: processes_below(job.pid) for name, job in jobs.items()}
        for number in range(2 * rounds):
            # ABBA: whatever drifts, drifts for both.
            name, other = ("first", "second") if number % 4 in (0, 3) else ("second", "first")
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
                raise SystemExit(f"the job under {' '.join(commands[name][2:4])} ended with {job.returncode}")
        return turns, {name: json.loads((folder / f"{name}.json").read_text()) for name in jobs}
    finally:
        for job in jobs.values():
            if job.poll() is None:
                tree = processes_below(job.pid)
                send(tree, signal.SIGKILL)
                send(tree, signal.SIGCONT)
                job.wait()


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


def _medians(steps: list[Step], turn: Turn) -> tuple[float, float] | None:
    """Wall time and processor time of a step in that turn."""
    begin, end = turn[0] + SETTLE_S, turn[1]
    inside = [(after - before, used) for before, after, used in steps if begin <= before and after <= end]
    if len(inside) < LEAST_STEPS:
        return None
    return statistics.median(wall for wall, _ in inside), statistics.median(used for _, used in inside)


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
    versions = {name: metadata.version(name) for name in ("rankscope", "torch")} | {"python": platform.python_version()}
    return [
        f"- date: {time.strftime('%Y-%m-%d')}",
        f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}",
        f"- machine: {platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}; "
        f"load average of the last 5 minutes {os.getloadavg()[1]:.1f}",
    ]


def lines_of(found: Comparison, settled: str) -> list[str]:
    """The same, about a comparison."""
    return [
        f"- 2 ranks each (gloo), each rank on a core of its own, turns of {TURN_S:g} s: {found.pairs} pairs of turns "
        f"in {len(found.starts)} starts; step under torchrun {found.first_ms:.2f} ms",
        f"- **step time ratio {found.step}**; {settled}",
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
