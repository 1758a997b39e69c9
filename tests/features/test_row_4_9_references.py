"""Known issues are cited: those of the notes are among them."""

from __future__ import annotations

import re
from pathlib import Path

ROW = "4.9"
COMMAND_LINE = "rankscope diagnose train.log"
DIAGNOSIS = Path(__file__).resolve().parents[2] / "src" / "rankscope" / "diagnosis"


def test_the_references_of_the_notes_are_among_ours() -> None:
    text = "".join(path.read_text() for path in DIAGNOSIS.rglob("*.py"))
    cited = set(re.findall(r'"([\w.-]+/[\w.-]+#\d+)"', text))
    assert {"pytorch/pytorch#109173", "pytorch/pytorch#95118"} <= cited
    assert len(cited) > 20
