"""`--fault KIND@rank=R,step=S`: which failure to plant, where and when. Needs no torch."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal, get_args

from rankscope.errors import UsageError

FaultKind = Literal["hang", "crash", "oom", "nan", "slow", "skip"]
KINDS: tuple[str, ...] = get_args(FaultKind)
_FORM = "write it as hang@rank=1,step=5"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    kind: FaultKind
    rank: int
    step: int


def parse_fault(text: str, steps: int | None = None) -> FaultPlan:
    """From the command line; the rank is 1 and the step 5 where they are left out. `steps`: how many the run makes."""
    kind, at, where = text.partition("@")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UsageError(f"--fault: no fault '{kind}'; {hint}there are {', '.join(KINDS)}")
    values = {"rank": 1, "step": 5}
    seen: set[str] = set()
    for part in where.split(",") if at else ():
        match = re.fullmatch(r"(\w+)=(\d+)", part)
        if match is None or match[1] not in values:
            raise UsageError(f"--fault: '{part}' is neither rank=NUMBER nor step=NUMBER; {_FORM}")
        if match[1] in seen:
            raise UsageError(f"--fault: {match[1]} is given twice; {_FORM}")
        seen.add(match[1])
        values[match[1]] = int(match[2])
    if steps is not None and values["step"] >= steps:
        raise UsageError(
            f"--fault: step {values['step']} never comes, because the run makes steps 0 to {steps - 1}: "
            f"write {kind}@rank={values['rank']},step={steps - 1} at most, or raise --max-steps"
        )
    return FaultPlan(kind, values["rank"], values["step"])  # type: ignore[arg-type]
