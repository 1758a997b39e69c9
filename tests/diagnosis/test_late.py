"""A rank that comes to a collective after the others' time in it has run out."""

from __future__ import annotations

import factories as make
import pytest
from ended_ranks import CLOSED, TIMED_OUT, victim
from msgspec.structs import replace

from rankscope.evidence.model import RankEvidence
from rankscope.report.conclude import conclude

AT = make.frame("train.py", 55, "validate")


def failed_in(rank: RankEvidence, entered: float, left: float) -> RankEvidence:
    call = replace(make.call(40, "all_reduce", AT, seq=7), entered_at=entered, left_at=left, failed=True)
    return replace(rank, progress=make.progress(call, world=2))


@pytest.mark.parametrize(("late_s", "cause"), [(0.2, "slow-rank"), (-4.0, "comm-error")])
def test_who_came_after_the_others_had_given_up_is_the_slow_one(late_s: float, cause: str) -> None:
    """Both ended with errors of victims: the one by its time limit, the other because the first had left."""
    limit = make.NOW - 3
    waited = failed_in(victim(0, TIMED_OUT, at=limit), limit - 5, limit)
    other = failed_in(victim(1, CLOSED, at=limit + 0.4), limit + late_s, limit + 0.4)
    verdict = conclude(make.evidence(waited, other))
    assert verdict.cause == cause
    if cause == "slow-rank":
        assert (verdict.outcome, verdict.victims, [each.rank for each in verdict.culprits]) == ("hang", (0,), [1])
        assert "validate (train.py:55) 0.2 s after rank 0 had given it up after 5.0 s" in verdict.headline
    else:
        assert verdict.culprits == ()
