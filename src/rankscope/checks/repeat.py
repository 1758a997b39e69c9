"""`check single --repeat SECONDS`: one and the same training step again and again on every device, compared bit by bit.

A device that computes wrongly now and then (silent corruption) gives other bits for the same step; a fault of the
program does not. `python -m rankscope.checks.repeat SECONDS` is the part that needs torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from rankscope.checks.child import run_child
from rankscope.checks.model import Findings, Flaw

if TYPE_CHECKING:
    from torch import Tensor

START_S = 60.0
"""Beside the time for repeating: imports, and the first step on every device."""
_MOST_TOLD = 3
_DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
_FIX = (
    "take this device out of use and have it tested (dcgmi diag -r 3, memtest for a CPU): what it computes cannot be "
    "trusted"
)

Step = Callable[[], "Tensor"]
"""Makes the step anew from the same numbers; all that it computed, as one tensor of bits."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Of one device."""

    device: str
    times: int
    differing: tuple[tuple[int, int], ...] = ()
    """Repetitions that gave other bits than the first, and in how many values."""


def check_repeat(seconds: float) -> Findings:
    ended = run_child(
        ["-m", "rankscope.checks.repeat", str(seconds)], limit_s=seconds + START_S, environment=_DETERMINISTIC
    )
    if ended.over == "time":
        what = f"the repetitions did not end within {seconds + START_S:.0f} s"
        fix = "see what else runs on this machine (top, 'rankscope gpus') and the kernel's log"
        return Findings(flaws=(Flaw("slow-rank", what, fix),))
    if ended.code != 0:
        what = f"repeating a step fails: {ended.last_words or f'exit code {ended.code}'}"
        fix = "run python -m rankscope.checks.repeat 5 for the whole traceback"
        return Findings(flaws=(Flaw("exception", what, fix),))
    made = msgspec.json.decode(ended.out.splitlines()[-1].encode(), type=tuple[Repeated, ...])
    return findings(made, seconds)


def findings(made: tuple[Repeated, ...], seconds: float) -> Findings:
    flaws, facts = [], []
    for each in made:
        if not each.differing:
            facts.append(f"{each.device}: one step {each.times} times in {seconds:g} s, the same bits each time")
            continue
        told = ", ".join(f"repetition {number} in {values} values" for number, values in each.differing[:_MOST_TOLD])
        more = f" and {len(each.differing) - _MOST_TOLD} more" if len(each.differing) > _MOST_TOLD else ""
        what = f"{each.device} gave other bits for the same step in {len(each.differing)} of {each.times}: {told}{more}"
        flaws.append(Flaw("parameters-diverged", what, _FIX))
    return Findings(flaws=tuple(flaws), facts=tuple(facts))


def repeat(steps: dict[str, Step], seconds: float, clock: Callable[[], float] = time.monotonic) -> tuple[Repeated, ...]:
    """All devices at once, each at least twice."""
    first = {device: step() for device, step in steps.items()}
    differing: dict[str, list[tuple[int, int]]] = {device: [] for device in steps}
    times = 1
    until = clock() + seconds
    while times < 2 or clock() < until:
        times += 1
        made = {device: step() for device, step in steps.items()}
        for device, bits in made.items():
            wrong = int((bits != first[device]).sum())
            if wrong:
                differing[device].append((times, wrong))
    return tuple(Repeated(device, times, tuple(differing[device])) for device in steps)


def step_on(device: str) -> Step:
    """Forward, backward and update of two wide layers, on a GPU also in half precision, where tensor cores compute."""
    import torch
    from torch import nn

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    on_gpu = device.startswith("cuda")
    width = 4096 if on_gpu else 512
    weights = [(torch.randn(width, width) / width**0.5).to(device) for _ in range(2)]
    inputs = torch.randn(width, width).to(device)
    precisions = (torch.float32, torch.bfloat16) if on_gpu else (torch.float32,)

    def step() -> Tensor:
        bits = []
        for precision in precisions:
            mine = [weight.to(precision).requires_grad_() for weight in weights]
            hidden = nn.functional.gelu(inputs.to(precision) @ mine[0])
            loss = (hidden @ mine[1]).float().square().mean()
            gradients = torch.autograd.grad(loss, mine)
            updated = [weight.detach() - 0.1 * gradient for weight, gradient in zip(mine, gradients, strict=True)]
            bits += [each.float().view(torch.int32).flatten() for each in updated]
        return torch.cat(bits)

    return step


def main(seconds: float) -> None:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = {f"cuda:{n}": f"cuda:{n} ({torch.cuda.get_device_name(n)})" for n in range(count)} or {"cpu": "cpu"}
    made = repeat({name: step_on(device) for device, name in named.items()}, seconds)
    sys.stdout.write(msgspec.json.encode(made).decode() + "\n")


if __name__ == "__main__":
    main(float(sys.argv[1]))
