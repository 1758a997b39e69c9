"""Arrows point one way: who may import whom, as the design draws it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src" / "rankscope"

FLOOR = frozenset(
    {
        *("errors", "mask", "private_files", "held_folders", "spelling", "whose_code", "addresses", "door", "versions"),
        *("terminal_text", "verbs", "given_paths", "streams", "__version__"),
    }
)
"""Small modules that everybody may use, and that use nobody else."""
BELOW = {
    "process_status": FLOOR,
    "probe": FLOOR | {"process_status"},
    "marks": FLOOR | {"probe"},
    "evidence": FLOOR | {"probe"},  # it reads what the probe writes: the layout of a page belongs to the writer
    "diagnosis": FLOOR | {"evidence"},
    "report": FLOOR | {"evidence", "diagnosis"},
    "clusters": FLOOR,
    "distributed": FLOOR,
    "checks": FLOOR | {"evidence", "diagnosis", "report", "distributed"},
    "launch": FLOOR | {"process_status", "probe", "evidence", "diagnosis", "report", "clusters", "checks"},
}
"""Who stands on whom. A name that is missing here belongs to the floor or to the roof."""
ROOF = frozenset({"cli", "commands", "start", "testing", "train", "__main__", "__init__"})
"""They may use everything. Of these only `commands` is used at all, by the command line. `train` is a guest: its verbs
come by entry points."""
ALLOWED = {**BELOW, "cli": frozenset({*BELOW, *FLOOR, "commands"})}
ALLOWED |= {"start": frozenset({"cli", "streams"}), "__main__": frozenset({"start"})}
ALLOWED |= dict.fromkeys(FLOOR, FLOOR)
ALLOWED |= {"commands": frozenset({*BELOW, *FLOOR}), "train": frozenset({*BELOW, *FLOOR})}
ALLOWED["testing"] = frozenset({*BELOW, *FLOOR})
ALLOWED["__init__"] = frozenset({"distributed", "marks", "process_status"})


def part_of(path: Path) -> str:
    """`launch` of src/rankscope/launch/nodes/exchange.py."""
    within = path.relative_to(ROOT)
    return within.parts[0] if len(within.parts) > 1 else within.stem


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Parts of this package that a file imports anywhere, each with its line; also inside of functions."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "rankscope" and len(parts) > 1:
                yield parts[1], node.lineno


def against_the_order(part: str, tree: ast.AST) -> list[str]:
    return [f"{part} imports {other} (line {line})" for other, line in imported(tree) if not may_use(part, other)]


def may_use(part: str, other: str) -> bool:
    return other == part or other in ALLOWED.get(part, frozenset())


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_import_against_the_order(path: Path) -> None:
    assert against_the_order(part_of(path), ast.parse(path.read_text(encoding="utf-8"))) == []


def test_every_part_has_its_place_in_the_order() -> None:
    assert {part_of(path) for path in FILES} - {*BELOW, *FLOOR, *ROOF} == set()


def test_the_order_has_no_circle() -> None:
    def reached(part: str, path: tuple[str, ...]) -> None:
        assert part not in path, " -> ".join((*path, part))
        for other in ALLOWED[part] - FLOOR:
            reached(other, (*path, part))

    for part in BELOW:
        reached(part, ())


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("report", "from rankscope.launch.gpu_choice import choose"),
        ("report", "def f():\n    import rankscope.launch.job"),
        ("checks", "from rankscope.launch import environment"),
        ("probe", "from rankscope.evidence.model import Evidence"),
        ("diagnosis", "from rankscope import report"),
        ("evidence", "if True:\n    from rankscope.diagnosis import views"),
        ("launch", "from rankscope.train.config import Config"),
        ("cli", "def f():\n    from rankscope.train.command import train_command"),
        ("commands", "from rankscope.train import settings"),
        ("errors", "from rankscope.evidence import model"),
    ],
)
def test_an_arrow_against_the_order_is_seen(part: str, line: str) -> None:
    assert against_the_order(part, ast.parse(line))
