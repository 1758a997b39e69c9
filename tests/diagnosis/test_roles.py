"""Lines that ranks with parts of their own have always called from are no difference between them."""

from __future__ import annotations

from rankscope.diagnosis.roles import in_common_lines
from rankscope.diagnosis.sequences import Item, align

SERVER = (("train.py", 94),)
ACTOR = (("train.py", 77),)
OTHER = (("train.py", 12),)


def calls(*paths: object) -> list[Item | None]:
    return [Item("all_reduce", path) for path in paths]


def test_a_line_that_always_met_one_of_the_others_is_theirs() -> None:
    made = {0: calls(*[SERVER] * 8), 1: calls(*[ACTOR] * 8), 2: calls(*[ACTOR] * 7)}
    assert align(made) is not None
    common = in_common_lines(made, until=7)
    assert [item.path for item in common[0] if item is not None] == [ACTOR] * 8
    parting = align(common)
    assert parting is not None
    assert parting.at == 7


def test_ranks_that_are_out_of_step_keep_their_lines() -> None:
    """Both sides use both lines: one call more came before."""
    made = {0: calls(OTHER, *[SERVER, ACTOR] * 6), 1: calls(*[SERVER, ACTOR] * 6), 2: calls(*[SERVER, ACTOR] * 6)}
    assert in_common_lines(made, until=12) == made


def test_few_calls_are_no_habit() -> None:
    made = {0: calls(*[SERVER] * 4), 1: calls(*[ACTOR] * 4), 2: calls(*[ACTOR] * 4)}
    assert in_common_lines(made, until=4) == made


def test_another_operation_is_never_taken_for_the_same_call() -> None:
    barrier: list[Item | None] = [Item("barrier", SERVER)] * 8
    made = {0: barrier, 1: calls(*[ACTOR] * 8), 2: calls(*[ACTOR] * 8)}
    assert in_common_lines(made, until=8) == made
