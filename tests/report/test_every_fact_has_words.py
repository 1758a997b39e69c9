"""Facts and advice are values; everything that a rule may say has words."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

from rankscope.diagnosis import facts
from rankscope.diagnosis.facts import FACTS
from rankscope.diagnosis.facts.logs import May
from rankscope.diagnosis.facts.seen import MayStand
from rankscope.diagnosis.rules.offline.log_phases import what_may_keep_it
from rankscope.report.words import has_words, sentence
from rankscope.report.words.advice import ADVICE

DIAGNOSIS = Path(facts.__file__).parents[1]


def test_every_fact_has_words() -> None:
    for module in pkgutil.iter_modules(facts.__path__):
        importlib.import_module(f"{facts.__name__}.{module.name}")
    assert [kind for kind, fact in FACTS.items() if not has_words(fact)] == []


def test_every_advice_has_words() -> None:
    keys = {key for file in DIAGNOSIS.rglob("*.py") for key in re.findall(r'\bAdvice\(\s*"([^"]+)"', file.read_text())}
    assert keys - set(ADVICE) == set()


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
