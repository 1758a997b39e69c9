"""Where no optimizer step counts the rounds of a program, the calls before the parting do."""

from __future__ import annotations

import factories as make

from rankscope.evidence.model import Group, RankEvidence
from rankscope.report.conclude import conclude

USUAL, EXTRA = make.frame("engine.py", 42, "step"), make.frame("engine.py", 39, "vote")
WHOLE = (Group("default_pg", "", (0, 1, 2)),)


def rank(number: int, last: str) -> RankEvidence:
    calls = [make.call(at, "all_reduce", USUAL, seq=at + 1) for at in range(6)]
    site = USUAL if last == "all_reduce" else EXTRA
    calls.append(make.call(6, last, site, seq=7, left=False))
    inner = make.lib("torch/distributed/distributed_c10d.py", last)
    return make.rank(
        number,
        make.thread((inner, site, make.frame("serve.py", 9, "main"))),
        processes=make.process("futex"),
        still_for_s=20.0,
        progress=make.progress(*calls, world=3, groups=WHOLE),
    )


def test_iteration_of_the_first_parting_is_told_without_optimizer_steps() -> None:
    verdict = conclude(make.evidence(rank(0, "all_reduce"), rank(1, "all_reduce"), rank(2, "all_gather")))
    assert (verdict.outcome, [culprit.rank for culprit in verdict.culprits]) == ("hang", [2])
    assert "in iteration 7 of all_reduce at step (engine.py:42)" in verdict.because[0]
