"""Whatever one language can say, the other can, with the same numbers and names in it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import string
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Union

import msgspec
import pytest

from rankscope.diagnosis import facts
from rankscope.diagnosis.facts import FACTS, Fact
from rankscope.diagnosis.rules.crashes.known_errors import KNOWN_ERRORS
from rankscope.diagnosis.verdict import Where
from rankscope.errors import UsageError
from rankscope.report import words
from rankscope.report.words import advice as english_advice
from rankscope.report.words import ko
from rankscope.report.words.ko import advice as korean_advice
from rankscope.report.words.ko.meanings import MEANINGS
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.languages import CODES, chosen_language, language

SOURCE = Path(words.__file__).parents[2]
FILES = [module.name for module in pkgutil.iter_modules(ko.__path__) if module.name not in ("particles", "labels")]
HANGUL = re.compile("[가-힣]")
for module in pkgutil.iter_modules(facts.__path__):
    importlib.import_module(f"{facts.__name__}.{module.name}")


@pytest.mark.parametrize("speaks", ["sentence", "headline", "doing"])
def test_facts_have_words_of_their_own_in_both_or_in_neither(speaks: str) -> None:
    assert getattr(words, speaks).registry.keys() == getattr(ko, speaks).registry.keys()


def test_each_fact_has_words_in_korean() -> None:
    assert [name for name, fact in FACTS.items() if ko.sentence.dispatch(fact) is ko.sentence.dispatch(object)] == []


def test_advice_and_known_errors_are_the_same_in_both() -> None:
    assert korean_advice.ADVICE.keys() == english_advice.ADVICE.keys()
    assert MEANINGS.keys() == KNOWN_ERRORS.keys()


def _blanks(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_advice_speaks_of_the_same_things() -> None:
    for key, text in english_advice.ADVICE.items():
        assert _blanks(korean_advice.ADVICE[key]) == _blanks(text), key
        assert HANGUL.search(korean_advice.ADVICE[key]), key


def test_words_that_rules_put_into_advice_are_known_in_korean() -> None:
    given = [
        keyword.value.values[-1] if isinstance(keyword.value, ast.BoolOp) else keyword.value
        for path in (SOURCE / "diagnosis").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Advice"
        for keyword in node.keywords
    ]
    found = {each.value for each in given if isinstance(each, ast.Constant)}
    assert found >= {"the lock file", "a save"}
    assert found == korean_advice._ABOUT.keys()


@pytest.mark.parametrize("name", [name for name in FILES if hasattr(words, f"_{name}")])
def test_tables_of_words_have_the_same_keys(name: str) -> None:
    """`_OUTSIDE` here and there: what a fact names by a key has words in both."""
    english, korean = (importlib.import_module(f"{package.__name__}.{name}") for package in (words, ko))
    for table, entries in vars(english).items():
        if isinstance(entries, dict) and re.fullmatch("_[A-Z_]+", table) and table != "_COUNTS":
            theirs = getattr(korean, table)
            assert theirs.keys() == entries.keys(), table
            for key, text in entries.items():
                assert _blanks(theirs[key]) == _blanks(text), (table, key)


def _values(hint: Any, name: str, depth: int) -> Iterator[Any]:
    """A few values that a field of that type may have."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        yield from inner
    elif origin in (Union, types.UnionType):
        for each in inner:
            yield from _values(each, name, depth)
    elif hint in _SIMPLE:
        yield from _SIMPLE[hint](name)
    elif origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        values = [value for value in _values(inner[0], name, depth) if value is not None][:3]
        yield tuple(values)
        yield tuple(values[:1])
    elif origin is tuple:
        yield tuple(next(_values(each, name, depth)) for each in inner)
    elif isinstance(hint, type) and issubclass(hint, Fact):
        kinds = [hint] if hint is not Fact else [FACTS["still"], FACTS["waits-in"]]
        for kind in kinds:
            yield from instances(kind, depth + 1)
    else:
        raise NotImplementedError(f"{name}: {hint}")


_TEXTS: dict[str, str] = {
    "known": "disk-full",
    "group": "2",
    "what": "data",
    "of": "lock",
}
_NUMBERS: dict[str, tuple[int, ...]] = {"code": (3, -11), "signal": (15,), "peer": (7, -1)}
_SIMPLE: dict[Any, Callable[[str], tuple[Any, ...]]] = {
    type(None): lambda _: (None,),
    bool: lambda _: (True, False),
    int: lambda name: _NUMBERS.get(name, (7, 13, 1)),
    float: lambda _: (25.5,),
    str: lambda name: (_TEXTS.get(name, f"some_{name}"),),
    Where: lambda _: (Where("/job/train.py", 88, "push"),),
}
_KEYS = {
    ("NotRuledOut", "what"): "long-kernel",
    ("Outside", "wants"): "answer",
    ("AwaitsQueue", "way"): "put",
    ("Works", "phase"): "saving",
    ("ProgramOver", "awaits"): "threads",
    ("Perhaps", "reason"): "calls-differ",
    ("MayStand", "cause"): "killed",
    ("KeptWaiting", "phase"): "data",
    ("WorksLonger", "phase"): "data",
    ("CameOutAs", "led"): "cause",
}
"""Fields that hold a key of a table of words."""


def instances(kind: type[Fact], depth: int = 0) -> Iterator[Fact]:
    """Facts of that kind: one for each value of each field, the others being the first."""
    hints = typing.get_type_hints(kind)
    choices: dict[str, list[Any]] = {}
    for field in msgspec.structs.fields(kind):
        key = _KEYS.get((kind.__name__, field.name))
        choices[field.name] = [key] if key is not None else list(_values(hints[field.name], field.name, depth))
    first = {name: values[0] for name, values in choices.items()}
    yield kind(**first)
    if depth:
        return
    for name, values in choices.items():
        for value in values[1:]:
            yield kind(**{**first, name: value})


@pytest.mark.parametrize("kind", FACTS.values(), ids=FACTS.keys())
def test_numbers_and_names_are_the_same_in_both(kind: type[Fact]) -> None:
    english, korean = language("en"), language("ko")
    for fact in instances(kind):
        for speaks in ("sentence", "headline", "doing"):
            said, there = getattr(english, speaks)(fact), getattr(korean, speaks)(fact)
            assert set(re.findall(r"\d+(?:\.\d+)?", said)) <= set(re.findall(r"\d+(?:\.\d+)?", there)), (said, there)
            assert set(re.findall(r"some_\w*[a-z]|train\.py:\d+", said)) <= set(
                re.findall(r"some_\w*[a-z]|train\.py:\d+", there, re.ASCII)
            ), (said, there)
            assert not re.search(r"\{\w*\}", there), there
            assert "None" not in there or "None" in said, there


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("랭크 1", "랭크 1이 랭크 1을 랭크 1로 랭크 1과"),
        ("랭크 2", "랭크 2가 랭크 2를 랭크 2로 랭크 2와"),
        ("랭크 0, 3", "랭크 0, 3이 랭크 0, 3을 랭크 0, 3으로 랭크 0, 3과"),
        ("랭크 10", "랭크 10이 랭크 10을 랭크 10으로 랭크 10과"),
        ("all_reduce", "all_reduce가 all_reduce를 all_reduce로 all_reduce와"),
        ("step (train.py:8)", "step (train.py:8)이 step (train.py:8)을 step (train.py:8)으로 step (train.py:8)과"),
        ("SIGKILL", "SIGKILL이 SIGKILL을 SIGKILL로 SIGKILL과"),
        ("`while busy`", "`while busy`가 `while busy`를 `while busy`로 `while busy`와"),
        ("잠금", "잠금이 잠금을 잠금으로 잠금과"),
        ("파일", "파일이 파일을 파일로 파일과"),
        ("워커", "워커가 워커를 워커로 워커와"),
    ],
)
def test_particles_follow_the_sound_of_the_word(word: str, told: str) -> None:
    each = Word(word)
    assert f"{each:이} {each:을} {each:으로} {each:과}" == told


@pytest.mark.parametrize(
    ("wanted", "environment", "code"),
    [
        (None, {}, "en"),
        ("ko", {"LANG": "en_US.UTF-8"}, "ko"),
        ("en", {"RANKSCOPE_LANG": "ko"}, "en"),
        (None, {"LANG": "ko_KR.UTF-8"}, "ko"),
        (None, {"LANG": "ko"}, "ko"),
        (None, {"LANG": "ko_KR.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        (None, {"LANG": "ko_KR.UTF-8", "LC_ALL": "C"}, "en"),
        (None, {"LANG": "en_US.UTF-8", "LC_ALL": "", "RANKSCOPE_LANG": "ko"}, "ko"),
        (None, {"LANG": "de_DE.UTF-8"}, "en"),
        (None, {"LANG": "kok_IN"}, "en"),
    ],
)
def test_language_is_that_of_the_option_or_of_the_environment(
    wanted: str | None, environment: dict[str, str], code: str
) -> None:
    assert chosen_language(wanted, environment) == code


def test_a_language_that_we_do_not_speak_is_refused_where_only_we_are_meant() -> None:
    with pytest.raises(UsageError, match=r"RANKSCOPE_LANG=fr is not known: give one of en, ko"):
        chosen_language(None, {"RANKSCOPE_LANG": "fr"})
    assert {language(code).code for code in CODES} == set(CODES)
