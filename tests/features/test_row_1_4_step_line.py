"""The trainer's line of a step, in the notes' form, from every rank."""

from __future__ import annotations

import re

import pytest
from notes import train, without_gpus

from conftest import Rankscope
from rankscope.train.voice import step_line

ROW = "1.4"
COMMAND_LINE = "rankscope train --debug"
DIFFERS = "Without a GPU the line begins with `R0:` and `[CPU 0]`."


def test_the_line_is_that_of_the_notes() -> None:
    told = "Step [0/100] | Loss: 12.2340 | LR: 1.00e-05 | Grad Norm: 2.7565 | ETA: 5:30"
    assert step_line(0, 100, 12.234, 1e-5, 2.7565, 330.0) == told


@pytest.mark.slow
def test_every_rank_writes_it_with_its_prefix(rankscope: Rankscope) -> None:
    ended = train(rankscope, "--debug", "--max-steps", 3, env=without_gpus())
    assert ended.code == 0, ended.err.decode()
    shown = ended.out.decode()
    form = (
        r"R(?:\d|0-1|0,1):INFO \| \[CPU (\d)\] Step \[(\d)/3\] \| "
        r"Loss: [\d.]+ \| LR: \S+ \| Grad Norm: [\d.]+ \| ETA: \S+"
    )
    found = {(match[1], match[2]) for match in re.finditer(form, shown)}
    assert found == {(rank, step) for rank in "01" for step in "012"}, shown
