"""All ranks are heard, and a hang of one of them is told as who is where."""

from __future__ import annotations

import pytest
from notes import stages

from conftest import Rankscope

ROW = "0.5"
COMMAND_LINE = "rankscope run train.py"
ONE_STAYS_BEHIND = """
import os, time
import rankscope
rankscope.stage("Tokenizer loaded")
with rankscope.stage("opening the logger"):
    time.sleep(13 if os.environ["RANK"] == "1" else 0)
with rankscope.stage("making the trainer"):
    time.sleep(13 if os.environ["RANK"] == "0" else 0)
"""


@pytest.mark.slow
def test_one_line_says_that_one_rank_is_in_another_stage(rankscope: Rankscope) -> None:
    ended = rankscope.run("--stages", "on", "--stall-after", 60, rankscope.script(ONE_STAYS_BEHIND))
    assert ended.code == 0, ended.err.decode()
    shown = ended.err.decode()
    assert 'rank 0 is in "making the trainer" (stage 4); rank 1 has been in "opening the logger" for ' in shown
    assert "[R0/2]" in stages(ended)
    assert "[R1/2]" in stages(ended)
