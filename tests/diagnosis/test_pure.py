"""The diagnosis touches no system and speaks no language: it reads the case, and states facts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope import diagnosis

FOLDER = Path(diagnosis.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))
SYSTEM = frozenset(
    {
        *(
            "glob",
            "os",
            "pathlib",
            "platform",
            "shutil",
            "site",
            "socket",
            "subprocess",
            "sys",
            "sysconfig",
            "tempfile",
        ),
        *("io", "time", "datetime", "random", "threading", "psutil", "torch"),
    }
)
SEARCHED_FOR = frozenset(
    {
        "Traceback (most recent call last)",
        "terminate called without an active exception",
        "DataLoader timed out after",
        "out of shared memory",
    }
)
"""What Python and torch write, and rules look for."""
SENTENCE = re.compile(r"[A-Za-z']+(?: [A-Za-z',]+){3,}")


def used_of_system(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in names:
            if name.partition(".")[0] in SYSTEM:
                yield f"line {node.lineno}: {name}"  # type: ignore[attr-defined]
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "input", "print")
        ):
            yield f"line {node.lineno}: {node.func.id}"


def sentences(tree: ast.AST, source: str) -> Iterator[str]:
    """Texts of four words and more that are neither documentation nor a pattern that something is searched with."""
    texts: set[ast.AST] = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.Assert):
            texts |= set(ast.walk(node))  # for whoever wrote a rule, not for users
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in texts:
            written = ast.get_source_segment(source, node) or ""
            if SENTENCE.search(node.value) and node.value not in SEARCHED_FOR and not written.startswith(("r", "(?")):
                yield f"line {node.lineno}: {node.value}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_diagnosis_touches_no_system(path: Path) -> None:
    assert list(used_of_system(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_no_rule_builds_a_sentence(path: Path) -> None:
    if path.name != "causes.py":  # the documentation of each cause
        source = path.read_text(encoding="utf-8")
        assert list(sentences(ast.parse(source), source)) == []


@pytest.mark.parametrize(
    "source",
    ["import os\nhome = os.environ['HOME']", "from pathlib import Path", "text = open('/proc/self/stat').read()"],
)
def test_a_look_at_the_system_would_be_noticed(source: str) -> None:
    assert list(used_of_system(ast.parse(source)))


def test_a_sentence_would_be_noticed() -> None:
    source = 'doing = f"rank {rank} waits for the others since {since}"'
    assert list(sentences(ast.parse(source), source))
