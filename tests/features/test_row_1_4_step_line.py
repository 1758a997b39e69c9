"""The trainer's line of a step, in the notes' form, from every rank."""

from __future__ import annotations

import re

import pytest
from notes import short_training

from conftest import Ended
from rankscope.train.voice import step_line

__all__ = ["short_training"]
ROW = "1.4"
COMMAND_LINE = "rankscope train --debug"
DIFFERS = "Without a GPU the line begins with `R0:` and `[CPU 0]`."


def test_the_line_is_that_of_the_notes() -> None:
    told = "Step [0/100] | Loss: 12.2340 | LR: 1.00e-05 | Grad Norm: 2.7565 | ETA: 5:30"
    assert step_line(0, 100, 12.234, 1e-5, 2.7565, 330.0) == told


@pytest.mark.slow
def test_every_rank_writes_it_with_its_prefix(short_training: Ended) -> None:
    assert short_training.code == 0, short_training.err.decode()
    shown = short_training.out.decode()
    form = (
        r"R(?:\d|0-1|0,1):INFO \| \[CPU (\d)\] Step \[(\d)/3\] \| "
        r"Loss: [\d.]+ \| LR: \S+ \| Grad Norm: [\d.]+ \| ETA: \S+"
    )
    found = {(match[1], match[2]) for match in re.finditer(form, shown)}
    assert found == {(rank, step) for rank in "01" for step in "012"}, shown
