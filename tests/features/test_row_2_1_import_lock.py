"""Imports one rank at a time under a file lock, told in the notes' words."""

from __future__ import annotations

import re

import pytest
from notes import stages

from conftest import Rankscope

ROW = "2.1"
COMMAND_LINE = "rankscope run --serialize-imports on train.py"
DIFFERS = (
    "`--serialize-imports auto` is the default: imports are serialised where memory is short for all of "
    "them at once, not always, since they would then take as many times as long as there are ranks."
)


@pytest.mark.slow
def test_one_rank_waits_while_the_other_imports(rankscope: Rankscope) -> None:
    ended = rankscope.run("--serialize-imports", "on", "--stages", "on", rankscope.script("import torch"), nproc=2)
    assert ended.code == 0, ended.err.decode()
    told = stages(ended)
    assert told.count("LOCK: acquired! Starting initialization...") == 2
    assert told.count("LOCK: released") == 2
    assert re.search(r"\[Rank \d\] LOCK: waiting for exclusive access\.\.\.", told)
