"""Every fact has words, every piece of advice too, and no two files of words speak of the same key."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.diagnosis import facts
from rankscope.diagnosis.facts import FACTS, Fact
from rankscope.diagnosis.rules.crashes.known_errors import KNOWN_ERRORS
from rankscope.report import words
from rankscope.report.words import has_words
from rankscope.report.words.advice import ADVICE
from rankscope.report.words.known_errors import MEANINGS

SOURCE = Path(facts.__file__).parent.parent.parent
for module in pkgutil.iter_modules(facts.__path__):
    importlib.import_module(f"{facts.__name__}.{module.name}")


@pytest.mark.parametrize("fact", FACTS.values(), ids=FACTS.keys())
def test_fact_has_words(fact: type[Fact]) -> None:
    assert has_words(fact)


def calls(name: str, *folders: Path) -> Iterator[tuple[Path, ast.Call]]:
    for folder in folders:
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                    yield path, node


def test_known_errors_have_words() -> None:
    assert KNOWN_ERRORS.keys() == MEANINGS.keys()


def test_advice_that_is_given_has_words() -> None:
    given = {
        node.args[0].value
        for _, node in calls("Advice", SOURCE / "diagnosis")
        if node.args and isinstance(node.args[0], ast.Constant)
    }
    given |= {advice.key for known in KNOWN_ERRORS.values() for advice in known.fix}
    assert given
    assert given <= ADVICE.keys()


def test_keys_of_advice_and_names_of_facts_are_used_once() -> None:
    english = Path(words.__file__).parent
    keys = [
        key.value
        for path, node in calls("ADVICE.update", english)
        if path.parent == english and isinstance(node.args[0], ast.Dict)
        for key in node.args[0].keys
        if isinstance(key, ast.Constant)
    ]
    names = [
        node.name
        for path in (SOURCE / "diagnosis" / "facts").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert [each for each, times in Counter((*keys, *names)).items() if times > 1] == []
