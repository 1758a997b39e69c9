"""What a stage costs: one that is recorded and not printed, and a training step with stages on against off.

    python benchmarks/stages.py [--starts 30] [--turns 40] [--no-job] [--null]

The first part times `with rankscope.stage(...)`, its use as a mark, and a wrapped call, in one process as a rank has it
after its first step. The second starts one job under `rankscope run` and one under `torchrun`, and lets them take turns
as step_time.py does; each step of both is inside a stage, which does nothing under `torchrun`. Writes both to
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

import rankscope
import step_job
import step_time
from rankscope.probe import bootstrap
from rankscope.probe.page import Page
from rankscope.probe.sites import Sites
from rankscope.probe.stage_wrappers import Call, wrap_attribute
from rankscope.probe.stages import StageBook

GOAL_US = 3.0
GOAL_RATIO = 1.005
LOOPS = 2_000
REPETITIONS = 200
"""Short and in turns: a machine that is slow for a second must not hit one of them alone."""

STEP = f"""
with rankscope.stage("step"):
    inputs = inputs.to(device)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
rankscope.step({step_job.TURN} * number + len(made))
"""


class Library:
    @staticmethod
    def call() -> None:
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    step_time.add_options(parser)
    parser.add_argument("--no-job", action="store_true", help="only the cost of a stage")
    chosen = parser.parse_args(arguments)
    costs = measure_stages()
    for name, microseconds in costs.items():
        print(f"{name:<16} {microseconds:.2f} µs")
    worst = max(costs.values())
    word = "met" if worst <= GOAL_US else "missed"
    print(f"a stage that is not printed: at most {worst:.2f} µs; goal {GOAL_US:g} µs: {word}")
    lines = [
        f"- a stage that is not printed, in {REPETITIONS} times {LOOPS:,} loops, the least: "
        + ", ".join(f"{name} {microseconds:.2f} µs" for name, microseconds in costs.items())
        + f"; **at most {worst:.2f} µs**, goal {GOAL_US:g} µs: {word}"
    ]
    if not chosen.no_job:
        job = step_job.in_turns(STEP, before="import rankscope", cuda=True)
        found = step_time.compare(chosen.starts, chosen.turns, chosen.layers, job, null=chosen.null)
        settled = step_time.told(found, GOAL_RATIO, null=chosen.null)
        second = "torchrun" if chosen.null else "rankscope run"
        lines += [
            f"- a training step inside of a stage, `{second}` with everything on over `torchrun`, where a stage does "
            "nothing:",
            *step_time.lines_of(found, settled),
        ]
    if not chosen.no_write:
        path = step_time.RESULTS / f"{time.strftime('%Y-%m-%d')}-stages{'-null' if chosen.null else ''}.md"
        path.write_text("\n".join(["# What a stage costs", "", *step_time.facts(), *lines]) + "\n")
        print(f"written: {path.name}")
    return 0


def measure_stages() -> dict[str, float]:
    """Microseconds of each way to pass a stage, less those of an empty loop."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        page = Page(f"{folder}/0-1.page", rank=0)
        book = StageBook(page, Sites(page))
        book.end_set_up()
        bootstrap.BOOKS.append(book)
        wrap_attribute(book, Library, "call", Call("Library.call", "Library ready", "library", announce=False))
        try:
            best = _best({"": _empty, "context manager": _managed, "mark": _marked, "wrapped call": _wrapped})
        finally:
            bootstrap.BOOKS.remove(book)
    return {name: microseconds - best[""] for name, microseconds in best.items() if name}


def _best(loops: Mapping[str, Callable[[int], None]]) -> dict[str, float]:
    """Microseconds of one turn of each loop, at its fastest."""
    least = dict.fromkeys(loops, float("inf"))
    for _ in range(REPETITIONS):
        for name, loop in loops.items():
            begin = time.thread_time()
            loop(LOOPS)
            least[name] = min(least[name], 1e6 * (time.thread_time() - begin) / LOOPS)
    return least


def _empty(count: int) -> None:
    for _ in range(count):
        pass


def _managed(count: int) -> None:
    for _ in range(count):
        with rankscope.stage("evaluation"):
            pass


def _marked(count: int) -> None:
    for _ in range(count):
        rankscope.stage("evaluation")


def _wrapped(count: int) -> None:
    for _ in range(count):
        Library.call()


if __name__ == "__main__":
    sys.exit(main())
