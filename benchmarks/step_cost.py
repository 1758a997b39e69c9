"""What the probe itself adds to a step: it is put in and taken out again in one running job, every few steps.

    python benchmarks/step_cost.py [--seconds 60] [--starts 3]

Two jobs, however alike, lie differently in memory, which moves a step by more than the probe does; and a machine's
speed changes from second to second. Here the same processes make some steps with the probe and some without it, in an
order drawn anew for each such pair (the same on all ranks). The difference is told as the mean of all pairs but the
tenth at either end, with its 95 % interval. What the launcher takes beside the ranks is told apart: processor time per second of
all its processes and threads, less what `torchrun` takes for the same job. Prints both and their sum in per cent of a
step, and writes them to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import step_time

GOAL = 1.005
PAIRS = 32
"""Between two looks at whether it is time to stop."""
STEPS = 2
"""Of either kind in a pair."""
TRIMMED = 0.1
BATCH = 32
LAUNCHER_S = 8.0

# Nothing is changed at a class between two steps, which would make Python forget what it knows of it: there are two
# iterators and two classes of the model, one as the probe left them and one as torch made them.
JOB = """
import json, os, random, sys, time
import torch
import torch.distributed as dist
import torch.optim.optimizer as optimizers
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import dataloader

ready, stop, out, width, pairs, steps, batch = *sys.argv[1:4], *map(int, sys.argv[4:8])
probed = "rankscope.probe.finite" in sys.modules
on = [True]
if probed:
    from rankscope.probe.finite import FiniteChecks
    make = FiniteChecks._own_gradient_hook
    def switched(*args):
        hook = make(*args)
        return lambda gradients: hook(gradients) if on[0] else None
    FiniteChecks._own_gradient_hook = switched

def plain(function):
    while getattr(function, "__code__", None) is not None and "rankscope" in function.__code__.co_filename:
        cells = dict(zip(function.__code__.co_freevars, (c.cell_contents for c in function.__closure__)))
        function = next(cells[name] for name in ("advance", "original", "function") if name in cells)
    return function

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
    torch.nn.Linear(width, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(torch.randn(pairs * steps * batch, width), batch_size=batch)

class With(DistributedDataParallel):
    pass
class Without(DistributedDataParallel):
    _pre_forward = plain(DistributedDataParallel._pre_forward)
class IteratorWith(dataloader._SingleProcessDataLoaderIter):
    pass
class IteratorWithout(dataloader._SingleProcessDataLoaderIter):
    __next__ = plain(dataloader._SingleProcessDataLoaderIter.__next__)
backward = torch.autograd.graph._engine_run_backward
places = [module for module in (torch.autograd.graph, torch.autograd) if hasattr(module, "_engine_run_backward")]
hooks = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]

def switch(wanted):
    on[0] = wanted
    model.__class__ = With if wanted else Without
    for module in places:
        module._engine_run_backward = backward if wanted else plain(backward)
    for kept, table in zip(probing_hooks, hooks):
        table.clear()
        if wanted:
            table.update(kept)

for inputs in loader:  # the first steps, with all that is special about them
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
probing_hooks = [dict(table) for table in hooks]
if probed:
    # `plain` must have found torch's own, all of them.
    assert plain(backward) is not backward and all(probing_hooks)
    assert Without._pre_forward is not With._pre_forward
    assert IteratorWithout.__next__ is not IteratorWith.__next__
if rank == 0:
    open(ready, "w").close()
found, flag, draw, over = [], torch.zeros(1), random.Random(0), False
while not over:
    iterators = {True: iter(loader), False: iter(loader)}
    for wanted, iterator in iterators.items():
        iterator.__class__ = IteratorWith if wanted else IteratorWithout
    for _ in range(pairs):
        first = draw.random() < 0.5
        pair = {}
        for wanted in (first, not first):
            if probed:
                switch(wanted)
            iterator = iterators[wanted]
            begin, before = time.perf_counter(), time.thread_time()
            for _ in range(steps):
                inputs = next(iterator)
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
            used = time.thread_time() - before
            pair[wanted] = ((time.perf_counter() - begin) / steps, used / steps)
        found.append((*pair[True], *pair[False]))
    if probed:
        switch(True)
    flag[0] = rank == 0 and os.path.exists(stop)
    dist.all_reduce(flag)
    over = bool(flag.item())
if rank == 0:
    with open(out, "w") as file:
        json.dump(found, file)
dist.destroy_process_group()
time.sleep(0.5)  # a gloo thread that lets go of the last collective after Python has gone would abort the process
"""

Pair = tuple[float, float, float, float]
"""Seconds and processor seconds of a step with the probe, and of one without it: the means of some."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a step, in seconds, with its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{1e6 * self.mean:.1f} µs (95 %: {1e6 * self.low:.1f} to {1e6 * self.high:.1f})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of steps after each start (default: 60)")
    parser.add_argument("--starts", type=int, default=3, help="times that the job is started (default: 3)")
    parser.add_argument("--width", type=int, default=512, help="layer width: the length of a step (default: 512)")
    parser.add_argument("--no-write", action="store_true", help="print only")
    chosen = parser.parse_args(arguments)
    pairs: list[Pair] = []
    for _ in range(chosen.starts):
        pairs += run("rankscope", chosen.width, chosen.seconds)[0]
    step_s = statistics.median(pair[2] for pair in pairs)
    beside = run("rankscope", chosen.width, LAUNCHER_S)[1] - run("torchrun", chosen.width, LAUNCHER_S)[1]
    wall = cost([pair[0] - pair[2] for pair in pairs])
    processor = cost([pair[1] - pair[3] for pair in pairs])
    # Both ranks' cores are busy: what the launcher takes, it takes from one of them, and the other waits for that one.
    ratio = 1 + wall.mean / step_s + beside
    lines = [
        f"step without the probe: {1e3 * step_s:.2f} ms; {len(pairs)} pairs of {STEPS} steps, {chosen.starts} starts",
        f"the probe adds to a step: {wall}, {100 * wall.mean / step_s:.2f} %",
        f"of which processor time of the main thread: {processor}, {100 * processor.mean / step_s:.2f} %",
        f"the launcher takes {1e3 * beside:.2f} ms of processor time a second more than torchrun: {100 * beside:.2f} %",
        f"together at most a ratio of {ratio:.4f}; goal {GOAL:g}: {'met' if ratio <= GOAL else 'missed'}",
    ]
    print("\n".join(lines))
    if not chosen.no_write:
        path = step_time.RESULTS / f"{time.strftime('%Y-%m-%d')}-step-cost.md"
        text = ["# What the probe adds to a step, in one process, and what the launcher takes beside it", ""]
        path.write_text("\n".join([*text, *step_time.facts(), *(f"- {line}" for line in lines)]) + "\n")
        print(f"written: {path.name}")
    return 0


def run(launcher: str, width: int, seconds: float) -> tuple[list[Pair], float]:
    """The pairs of rank 0, and the processor time per second of everything but the ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(step_time.PINNED + JOB)
        before, environment = step_time.started_alike()
        command = {
            "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"],
            "rankscope": [sys.executable, "-m", "rankscope", "run", "--standalone", "--run-dir", str(folder / "run")],
        }[launcher]
        ends = [str(folder / end) for end in ("ready", "stop", "steps.json")]
        numbers = [str(width), str(PAIRS), str(STEPS), str(BATCH)]
        with (folder / "log").open("wb") as log:
            job = subprocess.Popen(
                [*before, *command, "--nproc-per-node", "2", str(script), *ends, *numbers],
                stdout=log,
                stderr=log,
                env=environment,
            )
        try:
            while not (folder / "ready").exists():
                if job.poll() is not None:
                    raise SystemExit((folder / "log").read_text(errors="replace"))
                time.sleep(0.05)
            time.sleep(1.0)
            begin, used = time.monotonic(), _beside(job.pid, str(script))
            time.sleep(seconds)
            beside = (_beside(job.pid, str(script)) - used) / (time.monotonic() - begin)
            (folder / "stop").touch()
            if job.wait(60) != 0:
                raise SystemExit((folder / "log").read_text(errors="replace"))
            return json.loads((folder / "steps.json").read_text()), beside
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait(30)


def _beside(pid: int, script: str) -> float:
    """Processor seconds of the job's processes but the ranks."""
    total = 0
    for each in step_time.processes_below(pid):
        try:
            words = Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")
            environment = Path(f"/proc/{each}/environ").read_bytes()
            if script.encode() in words and b"\0LOCAL_RANK=" in b"\0" + environment:
                continue
            for task in os.listdir(f"/proc/{each}/task"):
                total += int(Path(f"/proc/{each}/task/{task}/schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return total / 1e9


def cost(differences: list[float]) -> Cost:
    draw = random.Random(0)
    means = sorted(_trimmed(draw.choices(differences, k=len(differences))) for _ in range(400))
    return Cost(_trimmed(differences), means[10], means[-11])


def _trimmed(values: list[float]) -> float:
    cut = int(TRIMMED * len(values))
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


if __name__ == "__main__":
    sys.exit(main())
