"""Lines keep their prefix when they are piped, so that `grep "GPU2:"` or `grep "R1:"` finds one rank's."""

from __future__ import annotations

import pytest

from conftest import Rankscope

ROW = "1.10"
COMMAND_LINE = 'rankscope run train.py 2>&1 | grep "R1:"'
LINES = """
import os
print("one of rank", os.environ["RANK"])
print("two of rank", os.environ["RANK"])
"""


@pytest.mark.slow
def test_every_line_of_a_rank_has_its_prefix(rankscope: Rankscope) -> None:
    ended = rankscope.run("--stages", "off", rankscope.script(LINES))
    shown = ended.out.decode().splitlines()
    assert sorted(line for line in shown if line.startswith("R1:")) == ["R1:one of rank 1", "R1:two of rank 1"]
    assert sorted(line for line in shown if line.startswith("R0:")) == ["R0:one of rank 0", "R0:two of rank 0"]
