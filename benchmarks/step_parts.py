"""Where the probe's microseconds of a step are: each place it stands at is timed by itself, with it and without it.

    python benchmarks/step_parts.py [--seconds 60] [--starts 2]

A whole step of 10 ms varies by more than the probe adds to it; the few microseconds around a hook hardly vary. Whole
steps are compared as well: what a hook pushes out of the caches for others is in these alone. Needs a C++ compiler:
between autograd's engine and the hook of a gradient no clock in Python can be read without taking the GIL first, which
is most of what that hook costs. Prints each part and their sum in per cent of a step, and writes them to
benchmarks/results/.
"""

from __future__ import annotations

import math
import random
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

import step_cost
import step_job

PARTS = (
    "a batch from its loader",
    "before the forward pass",
    "before the backward pass",
    "the gradient before its reduction",
    "after the backward pass",
    "around the optimizer's step",
)
GRADIENT = 3
BLOCK = 4
"""Steps between two changes: few, as a step's length drifts. No class is changed, which would slow the next steps."""
BLOCKS = step_job.BATCHES // BLOCK
"""Of a round."""

CLOCK = """
#include <torch/extension.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <time.h>
static long times[4];
using Variables = torch::autograd::variable_list;
struct Clock : torch::autograd::FunctionPreHook {
    int number;
    explicit Clock(int number) : number(number) {}
    Variables operator()(const Variables &gradients) override {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        times[number] = now.tv_sec * 1000000000L + now.tv_nsec;
        return gradients;
    }
};
static void add(torch::Tensor parameter, int number) {
    torch::autograd::impl::grad_accumulator(parameter)->add_pre_hook(std::make_unique<Clock>(number));
}
PYBIND11_MODULE(step_clock, module) {
    module.def("add", &add);
    module.def("between", [](int first, int last) { return times[last] - times[first]; });
}
"""

# Clocks 0 and 1 stand before and after the probe's hook of a gradient, 2 and 3 with nothing between.
BEFORE = """
sys.path.insert(0, {folder!r})
import collections, gc
import step_clock
from rankscope.probe import parameters
from rankscope.probe.finite import FiniteChecks
from rankscope.probe.replicas import Replica
from rankscope.probe.rhythm import Rhythm

make, add, hook = FiniteChecks._own_gradient_hook, FiniteChecks._add_replica, []

def kept(*args):
    hook.append(make(*args))
    return hook[0]

def between_clocks(checks, module):
    sentinel = parameters.sentinel_of(parameters.alive(each for _, each in Replica(module).shared))
    step_clock.add(sentinel, 0)
    add(checks, module)
    step_clock.add(sentinel, 1)
    other = next(each for each in module.parameters() if each is not sentinel)
    step_clock.add(other, 2)
    step_clock.add(other, 3)

FiniteChecks._own_gradient_hook, FiniteChecks._add_replica = kept, between_clocks
"""

# They have no file of the program's: the probe must find the line of the loop, not theirs.
TIMERS = """
def inner(*args, **kwargs):
    entered[0] = now()
    result = engine(*args, **kwargs)
    left[0] = now()
    return result

def outer(*args, **kwargs):
    begin = now()
    result = run[0](*args, **kwargs)
    passed[0], passed[1] = entered[0] - begin, now() - left[0]
    return result

def step_begins(*args):
    begun[0] = now()

def step_ends(*args):
    ended[0] = now()

def __next__(iterator):
    return ask[0](iterator)

def before_forward(*args, **kwargs):
    begin = now()
    result = forward[0](model, *args, **kwargs)
    fed[0] = now() - begin
    return result
"""

LOOP = """
import torch.optim.optimizer as optimizers
from torch.utils.data import dataloader

ready, stop, block = *sys.argv[3:5], int(sys.argv[5])
now = time.perf_counter_ns
entered, left, passed, fed, begun, ended = [0], [0], [0, 0], [0], [0], [0]
iterators, graph = dataloader._BaseDataLoaderIter, torch.autograd.graph
(rhythm,) = (each for each in gc.get_objects() if type(each) is Rhythm)
engine, pre_forward, advance = graph._engine_run_backward.__wrapped__, type(model)._pre_forward, iterators.__next__
exec(compile({timers!r}, "<timers>", "exec"))
probed = rhythm.backward(inner)
run, forward, ask = [probed], [pre_forward], [advance]
iterators.__next__ = __next__
for module in (graph, torch.autograd):
    module._engine_run_backward = outer
object.__setattr__(model, "_pre_forward", before_forward)
# The optimizer's own hooks stand within those of all optimizers.
optimizer.register_step_pre_hook(step_begins)
optimizer.register_step_post_hook(step_ends)
tables = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
hooks = [dict(table) for table in tables]
(gradients,) = (each for each in gc.get_referrers(hook[0]) if isinstance(each, dict))
(key,) = gradients
nothing = collections.deque(maxlen=0).append  # called with a gradient, it does nothing

def switch(wanted):
    run[0] = probed if wanted else inner
    forward[0] = pre_forward if wanted else pre_forward.__wrapped__
    ask[0] = advance if wanted else advance.__wrapped__
    gradients[key] = hook[0] if wanted else nothing
    for kept, table in zip(hooks, tables):
        table.clear()
        if wanted:
            table.update(kept)

if rank == 0:
    open(ready, "w").close()
flag, over, number = torch.zeros(1), False, 0
while not over:
    batches = iter(loader)
    for turn in range(len(loader) // block):
        wanted = (turn % 4 in (0, 3)) == (number % 2 == 0)
        switch(wanted)
        made = []
        for _ in range(block):
            begin = now()
            inputs = next(batches)
            came = now()
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            done = now()
            optimizer.step()
            end = now()
            reduced = step_clock.between(0, 1) - step_clock.between(2, 3)
            around = begun[0] - done + end - ended[0]
            made.append((came - begin, fed[0], passed[0], reduced, passed[1], around, end - begin))
        steps.append((wanted, made))
    number += 1
    switch(True)
    flag[0] = rank == 0 and os.path.exists(stop)
    dist.all_reduce(flag)
    over = bool(flag.item())
"""

Blocks = list[tuple[bool, list[list[int]]]]


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = step_cost.options(__doc__, starts=2).parse_args(arguments)
    added: list[list[float]] = []
    whole: list[float] = []
    plain: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        build_clock(Path(folder))
        before = BEFORE.format(folder=folder)
        text = step_job.text(LOOP.format(timers=TIMERS), before=before)
        for _ in range(chosen.starts):
            blocks, _ = step_cost.run("rankscope", chosen.layers, chosen.seconds, text, BLOCK)
            for parts, step, without in rounds(blocks):
                added.append(parts)
                whole.append(step)
                plain.append(without)
    step_s = statistics.median(plain)
    costs = [step_cost.cost([parts[at] for parts in added]) for at in range(len(PARTS))]
    total = sum_of_medians(added)
    ratio = 1 + total.median / step_s
    lines = [
        f"step without the probe: {1e3 * step_s:.2f} ms; {len(added)} rounds of {BLOCKS} blocks of {BLOCK} steps, "
        f"{chosen.starts} starts",
        *(f"{name}: {cost}" for name, cost in zip(PARTS, costs, strict=True)),
        f"together: {total}, a ratio of {ratio:.4f}",
        f"whole step, but for the call of the gradient's hook: {step_cost.cost(whole)}",
    ]
    step_cost.tell("step-parts", "What the probe adds to a step, part by part", lines, chosen)
    return 0


def rounds(steps: Blocks) -> list[tuple[list[float], float, float]]:
    """Of each round, in seconds, by the medians: what the probe adds to each part and to the whole step, and the step
    without it. A gradient's hook that does nothing is called in that, too; a job without the probe has none."""
    found = []
    for begin in range(0, len(steps) - BLOCKS + 1, BLOCKS):
        sides: dict[bool, list[list[int]]] = {True: [], False: []}
        for wanted, made in steps[begin : begin + BLOCKS]:
            sides[wanted].extend(made)
        on, off = (
            [1e-9 * statistics.median(column) for column in zip(*sides[side], strict=True)] for side in (True, False)
        )
        parts = [on[at] - (0.0 if at == GRADIENT else off[at]) for at in range(len(PARTS))]
        found.append((parts, on[-1] - off[-1], off[-1]))
    return found


def sum_of_medians(added: list[list[float]]) -> step_cost.Cost:
    def total(rows: list[list[float]]) -> float:
        return math.fsum(statistics.median(column) for column in zip(*rows, strict=True))

    draw = random.Random(0)
    drawn = sorted(total(draw.choices(added, k=len(added))) for _ in range(1000))
    return step_cost.Cost(total(added), drawn[25], drawn[-26])


def build_clock(folder: Path) -> None:
    import torch

    compiler = shutil.which("c++")
    if compiler is None:
        raise SystemExit("step_parts.py: needs a C++ compiler (c++), and there is none")
    source = folder / "step_clock.cpp"
    source.write_text(CLOCK)
    home = Path(torch.__file__).parent
    headers = (home / "include", home / "include/torch/csrc/api/include", sysconfig.get_paths()["include"])
    command = [compiler, "-O2", "-std=c++20", "-fPIC", "-shared", *(f"-I{each}" for each in headers), str(source)]
    libraries = [f"-L{home / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    done = subprocess.run(
        [*command, "-o", str(folder / "step_clock.so"), *libraries], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"step_parts.py: the clock could not be compiled:\n{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
