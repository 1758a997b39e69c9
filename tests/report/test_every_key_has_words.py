"""Facts that hold a key: whatever a rule may say with it has words."""

from __future__ import annotations

import re
from pathlib import Path

from rankscope.diagnosis import facts
from rankscope.diagnosis.facts.logs import May
from rankscope.diagnosis.facts.nothing_found import MayStand
from rankscope.diagnosis.rules.offline.log_phases import what_may_keep_it
from rankscope.report.words import sentence
from rankscope.report.words.advice import ADVICE

DIAGNOSIS = Path(facts.__file__).parents[1]


def test_whatever_ranks_may_have_done_can_be_said() -> None:
    deeds = {
        key for file in DIAGNOSIS.rglob("*.py") for key in re.findall(r'\bMay\([^"\n]*"([^"]+)"', file.read_text())
    }
    assert len(deeds) > 5
    for deed in deeds:
        assert sentence(May((1,), deed))


def test_whatever_may_keep_a_silent_job_can_be_said_and_confirmed() -> None:
    for phase in (
        "init",
        "barrier",
        "forward",
        "batch",
        "save",
        "evaluate",
        "model",
        "data",
        "logger",
        "step",
        "stage",
    ):
        possibilities = what_may_keep_it(phase)
        assert len(possibilities) >= 3
        for each in possibilities:
            assert isinstance(each.because, MayStand)
            assert sentence(each.because)
            assert each.next is not None
            assert each.next.key in ADVICE
