"""Marks of memory at the start, after the imports and after the model."""

from __future__ import annotations

import pytest
from notes import train, without_gpus

from conftest import Rankscope

ROW = "2.6"
COMMAND_LINE = "rankscope train --debug"


@pytest.mark.slow
def test_the_three_marks_come_in_order_from_every_rank(rankscope: Rankscope) -> None:
    ended = train(rankscope, "--debug", "--max-steps", 1, env=without_gpus())
    assert ended.code == 0, ended.err.decode()
    for rank in (0, 1):
        own = ended.log(rank, "stdout").decode()
        marks = [own.index(f"MEM:{name}") for name in ("START", "POST-IMPORT", "POST-MODEL")]
        assert marks == sorted(marks)
