"""Marks of memory at the start, after the imports and after the model."""

from __future__ import annotations

import pytest
from notes import short_training

from conftest import Ended

__all__ = ["short_training"]
ROW = "2.6"
COMMAND_LINE = "rankscope train --debug"


@pytest.mark.slow
def test_the_three_marks_come_in_order_from_every_rank(short_training: Ended) -> None:
    assert short_training.code == 0, short_training.err.decode()
    for rank in (0, 1):
        own = short_training.log(rank, "stdout").decode()
        marks = [own.index(f"MEM:{name}") for name in ("START", "POST-IMPORT", "POST-MODEL")]
        assert marks == sorted(marks)
