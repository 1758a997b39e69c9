"""What the probe itself adds to a step: its parts are put in and taken out again in one running job, every few steps.

    python benchmarks/step_cost.py [--seconds 60] [--starts 3]

Two jobs, however alike, lie differently in memory, which moves a step by more than the probe does. Here the same
processes make steps with the probe and without it in turn (all ranks at the same step, in the order ABBA), so that a
difference of some microseconds shows even on a machine that does other things. What the launcher takes beside the ranks
is told apart: processor time per second of all its processes and threads, less what `torchrun` takes for the same job.
Prints both and their sum in per cent of a step, and writes them to benchmarks/results/.
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
from typing import Any

import step_job
import step_time

GOAL = 1.005
BLOCK = step_job.BATCHES // 4
"""Steps between two changes."""
SETTLE = 2
"""Steps after a change that do not count: classes that were changed are looked up anew."""
LAUNCHER_S = 8.0

# Before the first backward pass: the hook of a gradient is made there, and stays.
SWITCHED = """
probed = "rankscope.probe.bootstrap" in sys.modules
if probed:
    from rankscope.probe.finite import FiniteChecks
    on, make = [True], FiniteChecks._own_gradient_hook
    def switched(*args):
        hook = make(*args)
        return lambda gradients: hook(gradients) if on[0] else None
    FiniteChecks._own_gradient_hook = switched
"""

# Blocks are switched by their number: all ranks switch at the same step.
LOOP = """
import torch.optim.optimizer as optimizers
from torch.utils.data import dataloader

ready, stop, block = *sys.argv[3:5], int(sys.argv[5])

def plain(function):
    while type(function).__module__.startswith("rankscope") or "rankscope" in function.__code__.co_filename:
        function = function.__wrapped__
    return function

places = [(dataloader._BaseDataLoaderIter, "__next__"), (DistributedDataParallel, "_pre_forward"),
          (torch.autograd.graph, "_engine_run_backward"), (torch.autograd, "_engine_run_backward")]
places = [(owner, name, vars(owner)[name]) for owner, name in places if name in vars(owner)]
hooks = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
probing_hooks = [dict(table) for table in hooks]

def switch(wanted):
    on[0] = wanted
    for owner, name, probing in places:
        setattr(owner, name, probing if wanted else plain(probing))
    for kept, table in zip(probing_hooks, hooks):
        table.clear()
        if wanted:
            table.update(kept)

if probed:
    # `plain` must have found torch's own, all of them.
    assert all(plain(probing) is not probing for _, _, probing in places), places
    assert all(probing_hooks), probing_hooks
if rank == 0:
    open(ready, "w").close()
flag, over, number = torch.zeros(1), False, 0
while not over:
    batches = iter(loader)
    for turn in range(4):
        wanted = turn in (0, 3) if number % 2 == 0 else turn in (1, 2)
        if probed:
            switch(wanted)
        walls, used = [], []
        for _ in range(block):
            begin, before = time.perf_counter(), time.thread_time()
            inputs = next(batches)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            used.append(time.thread_time() - before)
            walls.append(time.perf_counter() - begin)
        steps.append((wanted, walls, used))
    number += 1
    if probed:
        switch(True)
    flag[0] = rank == 0 and os.path.exists(stop)
    dist.all_reduce(flag)
    over = bool(flag.item())
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a step, in seconds: the median over rounds of four blocks, and its 95 % interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{1e6 * self.median:.1f} µs (95 %: {1e6 * self.low:.1f} to {1e6 * self.high:.1f})"


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = options(__doc__, starts=3).parse_args(arguments)
    walls: list[float] = []
    used: list[float] = []
    plain: list[float] = []
    text = step_job.text(LOOP, before=SWITCHED)
    for _ in range(chosen.starts):
        for added_wall, added_used, step in rounds(run("rankscope", chosen.layers, chosen.seconds, text)[0]):
            walls.append(added_wall)
            used.append(added_used)
            plain.append(step)
    step_s = statistics.median(plain)
    scoped, plainly = (run(name, chosen.layers, LAUNCHER_S, text)[1] for name in ("rankscope", "torchrun"))
    beside = scoped - plainly
    wall, processor = cost(walls), cost(used)
    # Both ranks' cores are busy: what the launcher takes, it takes from one of them, and the other waits for that one.
    ratio = 1 + wall.median / step_s + beside
    highest = ratio + (wall.high - wall.median) / step_s
    settled = "missed" if ratio > GOAL else "met" if highest <= GOAL else f"met by the median, up to {highest:.4f}"
    lines = [
        f"step without the probe: {1e3 * step_s:.2f} ms; {len(walls)} rounds of 4 blocks of {BLOCK} steps, "
        f"{chosen.starts} starts",
        f"the probe adds to a step: {wall}, {100 * wall.median / step_s:.2f} %",
        f"of which processor time of the main thread: {processor}, {100 * processor.median / step_s:.2f} %",
        f"the launcher takes {1e3 * beside:.2f} ms of processor time a second more than torchrun: {100 * beside:.2f} %",
        f"together at most a ratio of {ratio:.4f}; goal {GOAL:g}: {settled}",
    ]
    tell(
        "step-cost",
        "What the probe adds to a step, in one process, and what the launcher takes beside it",
        lines,
        chosen,
    )
    return 0


def options(purpose: str | None, starts: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(purpose or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of steps after each start (default: 60)")
    parser.add_argument("--starts", type=int, default=starts, help=f"times that the job is started (default: {starts})")
    layers = step_job.LAYERS
    parser.add_argument("--layers", type=int, default=layers, help=f"of the network: the length of a step ({layers})")
    parser.add_argument("--no-write", action="store_true", help="print only")
    return parser


def tell(name: str, title: str, lines: list[str], chosen: argparse.Namespace) -> None:
    print("\n".join(lines))
    if not chosen.no_write:
        path = step_time.RESULTS / f"{time.strftime('%Y-%m-%d')}-{name}.md"
        path.write_text("\n".join([f"# {title}", "", *step_time.facts(), *(f"- {line}" for line in lines)]) + "\n")
        print(f"written: {path.name}")


def rounds(steps: list[tuple[bool, list[float], list[float]]]) -> list[tuple[float, float, float]]:
    """Of each four blocks: what the probe adds to the median step, to its processor time, and the step without it."""
    found = []
    for at in range(0, len(steps) - 3, 4):
        sides: dict[bool, tuple[list[float], list[float]]] = {True: ([], []), False: ([], [])}
        for wanted, walls, used in steps[at : at + 4]:
            sides[wanted][0].extend(walls[SETTLE:])
            sides[wanted][1].extend(used[SETTLE:])
        (on_wall, on_used), (off_wall, off_used) = (
            (statistics.median(sides[side][0]), statistics.median(sides[side][1])) for side in (True, False)
        )
        found.append((on_wall - off_wall, on_used - off_used, off_wall))
    return found


def run(launcher: str, layers: int, seconds: float, text: str, block: int = BLOCK) -> tuple[list[Any], float]:
    """The blocks of rank 0, and the processor time per second of everything but the ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(text)
        command = {
            "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"],
            "rankscope": [sys.executable, "-m", "rankscope", "run", "--standalone", "--run-dir", str(folder / "run")],
        }[launcher]
        arguments = [str(folder / "steps.json"), str(layers), str(folder / "ready"), str(folder / "stop"), str(block)]
        with (folder / "log").open("wb") as log:
            job = subprocess.Popen(
                [*command, "--nproc-per-node", "2", str(script), *arguments],
                stdout=log,
                stderr=log,
                env=step_job.environment(),
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
    medians = sorted(statistics.median(draw.choices(differences, k=len(differences))) for _ in range(2000))
    return Cost(statistics.median(differences), medians[50], medians[-51])


if __name__ == "__main__":
    sys.exit(main())
