"""What a function still has to do after a line."""

from __future__ import annotations

import ast

import pytest

from rankscope.diagnosis.source.still_to_come import still_calls

ROUND = """
def turn(actor, late):
    if late:
        share(actor)
        actor.improve()
        return
    actor.improve()
    share(actor)

def run(actors):
    for actor in actors:
        share(actor)
        if actor.idle:
            continue
        try:
            step(actor)
        finally:
            improve(actor)
    improve(actors)
"""


@pytest.mark.parametrize(
    ("line", "names", "comes"),
    [
        (4, {"improve"}, True),  # the next line
        (5, {"improve"}, False),  # it returns after it
        (8, {"improve"}, False),  # the end of the function
        (12, {"improve"}, True),  # later in this turn of the loop
        (16, {"improve"}, True),  # in the `finally`
        (18, {"improve"}, False),  # the last of this turn: the next one, and what follows the loop, do not count
        (12, {"share"}, False),
        (14, {"improve"}, False),  # `continue`
        (99, {"improve"}, False),
    ],
)
def test_calls_after_a_line(line: int, names: set[str], comes: bool) -> None:
    assert still_calls(ast.parse(ROUND), line, names) is comes
