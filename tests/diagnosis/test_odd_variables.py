"""Ranks that look for the others elsewhere: named once all have come to their set-up, and not before."""

from __future__ import annotations

from typing import Any

import pytest
from factories import evidence, progress
from factories import rank as make_rank

from rankscope.diagnosis.rules.setup.variables import explain_odd_variables
from rankscope.evidence.model import RankEvidence, Stage


def in_set_up(rank: int, told: str, *, came: bool = True) -> RankEvidence:
    """A rank in init_process_group, after it told of a variable that it changed itself."""
    blank = {
        "label": "",
        "entered_at": 1.0,
        "failed": False,
        "announced": True,
        "always": False,
        "thread": 1,
        "number": 0,
    }
    memory = dict.fromkeys(("memory_before", "memory_after", "gpu_before", "gpu_after"), 0)
    common: dict[str, Any] = {**blank, **memory}
    stages = [
        *(
            [Stage(index=0, words="Environment changed", kind="status", note=told, left_at=1.0, **common)]
            if told
            else []
        ),
        *([Stage(index=1, words="", kind="process group", note="", left_at=None, **common)] if came else []),
    ]
    environment = {"MASTER_PORT": "1111", "MASTER_ADDR": "a", "WORLD_SIZE": "2"}
    return make_rank(rank, progress=progress(stages=tuple(stages)), environment=environment)


@pytest.mark.parametrize(
    ("ranks", "culprits"),
    [
        ([in_set_up(0, ""), in_set_up(1, "MASTER_PORT=2222")], [1]),
        ([in_set_up(0, "", came=False), in_set_up(1, "MASTER_PORT=2222")], None),
        ([in_set_up(0, "MASTER_PORT=2222"), in_set_up(1, "MASTER_PORT=2222")], None),
        ([in_set_up(0, "MASTER_PORT=3333"), in_set_up(1, "MASTER_PORT=2222")], None),
        ([in_set_up(0, ""), in_set_up(1, "MASTER_PORT=2222, WORLD_SIZE=1")], None),
    ],
    ids=["odd", "the other has not come yet", "all the same", "two ways", "a world of its own"],
)
def test_nobody_is_blamed_before_all_have_come_or_where_two_ways_are_equal(
    ranks: list[RankEvidence], culprits: list[int] | None
) -> None:
    found = explain_odd_variables(evidence(*ranks))
    assert (None if found is None else [culprit.rank for culprit in found.culprits]) == culprits
