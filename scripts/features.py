"""Writes docs/features.md from the tests: for every row what it is, the command, and where it is tested.

python scripts/features.py            prints the page as it should be
python scripts/features.py --write    writes it
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "features"
PAGE = ROOT / "docs" / "features.md"
# ruff: noqa: E501  the page is wider than code
HEAD = """\
# What it can do, row by row

The rows come from notes of five teams about multi-GPU runs that stopped without saying why: what each of them built to find out.
For every row the command that does it here, and the test that tries it as a user would. `run_tests.sh` runs all of them; tests
on a GPU are left out where there is none. Wrong uses of every verb: [test_wrong_uses.py](../tests/features/test_wrong_uses.py).
This page is made by `python scripts/features.py --write`.

| row | what | command | tested by |
| --- | --- | --- | --- |
"""

DIFFERENCES = """
## Where it differs from the notes

On purpose; everything else is as the notes have it, names and forms of lines included.

| row | what differs, and why |
| --- | --- |
"""


@dataclass(frozen=True, slots=True)
class Row:
    number: str
    what: str
    command: str
    file: str
    tests: int
    on_gpu: int
    differs: str = ""
    """What is not to the letter of the notes, and why."""


def rows() -> list[Row]:
    """Of every test file that is named after one, in their order."""
    found = [_row(path) for path in TESTS.glob("test_row_*.py")]
    return sorted(found, key=lambda row: tuple(map(int, row.number.split("."))))


def _row(path: Path) -> Row:
    tree = ast.parse(path.read_text("utf-8"))
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("ROW", "COMMAND_LINE", "DIFFERS")
    }
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    on_gpu = [test for test in tests if any("mark.gpu" in ast.unparse(mark) for mark in test.decorator_list)]
    what = " ".join((ast.get_docstring(tree) or "").split())
    return Row(
        values["ROW"], what, values["COMMAND_LINE"], path.name, len(tests), len(on_gpu), values.get("DIFFERS", "")
    )


def page() -> str:
    lines = []
    for row in rows():
        gpu = f", {row.on_gpu} on a GPU" if row.on_gpu else ""
        count = f"{row.tests} test{'' if row.tests == 1 else 's'}{gpu}"
        command = row.command.replace("|", "\\|")
        link = f"[{row.file.removeprefix('test_').removesuffix('.py')}](../tests/features/{row.file})"
        lines.append(f"| {row.number} | {row.what.replace('|', chr(92) + '|')} | `{command}` | {link}: {count} |\n")
    others = [f"| {row.number} | {row.differs.replace('|', chr(92) + '|')} |\n" for row in rows() if row.differs]
    return HEAD + "".join(lines) + DIFFERENCES + "".join(others)


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(), "utf-8")
    else:
        sys.stdout.write(page())
