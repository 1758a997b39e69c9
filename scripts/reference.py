"""Writes the tables of docs/verdict.md from the code: causes, and kinds of facts.

python scripts/reference.py            prints the page as it should be
python scripts/reference.py --write    writes it
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import rankscope.report.words  # noqa: F401  loads every file of facts
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.causes import CAUSES
from rankscope.diagnosis.facts import FACTS, Fact
from rankscope.report.words.advice import advise

PAGE = Path(__file__).resolve().parent.parent / "docs" / "verdict.md"


def causes_table() -> str:
    rows = [
        "| cause | outcome | what it means | what to change | the same command again |",
        "| --- | --- | --- | --- | --- |",
    ]
    for cause in CAUSES.values():
        fix = advise(Advice(cause.fix[0])).replace("|", "\\|")
        rows.append(f"| `{cause.id}` | {', '.join(cause.outcomes)} | {cause.meaning} | {fix} | {cause.retry} |")
    return "\n".join(rows)


def facts_table() -> str:
    rows = ["| kind | fields | what it says |", "| --- | --- | --- |"]
    for kind, fact in sorted(FACTS.items()):
        rows.append(f"| `{kind}` | {_fields(fact)} | {_meaning(fact)} |")
    return "\n".join(rows)


def _fields(fact: type[Fact]) -> str:
    return ", ".join(f"`{field.name}`" for field in fields(fact)) or "–"


def _meaning(fact: type[Fact]) -> str:
    return " ".join((fact.__doc__ or "").split()).replace("|", "\\|")


def page(text: str) -> str:
    """The page with its tables replaced by those of the code."""
    for name, table in (("causes", causes_table()), ("facts", facts_table())):
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}{table}{end}{tail}"
    return text


if __name__ == "__main__":
    made = page(PAGE.read_text())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(made)
    else:
        sys.stdout.write(made)
