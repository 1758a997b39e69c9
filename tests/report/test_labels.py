"""Headings, columns and words that stand alone: each has its Korean, and none stands in a template as it is."""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.diagnosis.verdict import Certainty
from rankscope.launch import command
from rankscope.launch.watched import command as watched
from rankscope.report import attach, board, live, terminal
from rankscope.report.html import live as live_html
from rankscope.report.html import page
from rankscope.report.views import curves, incident, strips
from rankscope.report.words.ko.labels import LABELS

SOURCE = Path(terminal.__file__).parents[1]
TEMPLATES = sorted((SOURCE / "report" / "html" / "templates").glob("*.html"))
SAID_IN = [*(SOURCE / "report").rglob("*.py"), *(SOURCE / "launch").rglob("*.py")]
IN_TEMPLATE = re.compile(r"""\bt\(\s*"((?:[^"\\]|\\.)*)"(?: if .*? else "((?:[^"\\]|\\.)*)")?""")
COUNTED = re.compile(r"""counted\([^"]*"([^"]*)", "([^"]*)"\)""")
STATES = ("moved", "still", "ended")


def in_templates() -> Iterator[str]:
    for path in TEMPLATES:
        text = path.read_text(encoding="utf-8")
        for found in (*IN_TEMPLATE.findall(text), *COUNTED.findall(text)):
            yield from filter(None, found)
        for columns in re.findall(r"{% for head in \(([^)]*)\) %}", text):
            yield from re.findall(r'"([^"]*)"', columns)


def in_code() -> Iterator[str]:
    for path in SAID_IN:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("label", "counted"):
                for each in node.args:
                    parts = [each.body, each.orelse] if isinstance(each, ast.IfExp) else [each]
                    yield from (str(part.value) for part in parts if isinstance(part, ast.Constant))


def in_tables() -> Iterator[str]:
    """What is handed to `label` by a name."""
    yield from typing.get_args(Certainty)
    yield from (*terminal._LABELS, *live._THEN.values(), *board._HEADS, *board._STATES.values(), board._LEGEND)
    yield from (*strips.WORDS.values(), *page._FAULTS, *page._FAULTS.values(), *page._RETRY.values())
    yield from (text for _, text in live_html._PHASES)
    yield from (*curves.TITLES.values(), incident._SAME, incident._MOVED, *STATES)
    yield from (command._NO_KEY, command._NO_TERMINAL, watched._NOBODY, attach._GUESSED)
    yield from ("stopping the job", "stopping the other ranks", "culprit", "victim")


def test_every_label_has_its_korean() -> None:
    used = {*in_templates(), *in_code(), *in_tables()}
    assert len(used) > 200
    assert sorted(used - LABELS.keys()) == []


@pytest.mark.parametrize("text", LABELS)
def test_a_label_speaks_of_the_same_things(text: str) -> None:
    assert set(re.findall(r"{(\w+)", LABELS[text])) == set(re.findall(r"{(\w+)", text))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_words_stand_in_a_template(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"(?s){%.*?%}|{{.*?}}|<style>.*?</style>|<title>.*?</title>", "", text)
    text = re.sub(r"(?s)<[^>]*>", " ", text)
    assert set(re.findall(r"[A-Za-z]{2,}", text)) <= {"rankscope", "metrics"}
