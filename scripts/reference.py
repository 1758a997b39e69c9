"""Writes the tables of docs/verdict.md from the code, causes and kinds of facts, and the schema of verdict.json.

python scripts/reference.py            prints the page as it should be
python scripts/reference.py --schema   prints the schema
python scripts/reference.py --write    writes both
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

import rankscope.report.words  # noqa: F401  loads every file of facts
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.causes import CAUSES
from rankscope.diagnosis.facts import FACTS, Fact
from rankscope.diagnosis.verdict import Verdict
from rankscope.report.conclude import SCHEMA
from rankscope.report.words.advice import advise

PAGE = Path(__file__).resolve().parent.parent / "docs" / "verdict.md"
SCHEMA_FILE = PAGE.with_name("verdict.schema.json")
WITHOUT_CAUSE = ("ok", "interrupted", "unknown")


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
    return ", ".join(f"`{name}`" for name in fact.__struct_fields__) or "–"


def _meaning(fact: type[Fact]) -> str:
    return " ".join((fact.__doc__ or "").split()).replace("|", "\\|")


def schema() -> dict[str, Any]:
    """Of verdict.json, as JSON Schema: what the types say, with the causes and the facts that there are.

    Further fields are allowed: later versions add some, and rename none.
    """
    made = msgspec.json.schema(Verdict)
    fields_of = made["$defs"]["Verdict"]["properties"]
    fields_of["schema"] = {"const": SCHEMA}
    fields_of["cause"] = {"enum": [*CAUSES, None]}
    for by_rank in ("exit_codes", "stages"):
        fields_of[by_rank]["propertyNames"] = {"pattern": "^[0-9]+$"}
    fields_of["facts"]["items"] = {"$ref": "#/$defs/Fact"}
    made["$defs"]["Verdict"]["if"] = {"properties": {"cause": {"const": None}}}
    made["$defs"]["Verdict"]["then"] = {"properties": {"outcome": {"enum": list(WITHOUT_CAUSE)}}}
    made["$defs"]["Fact"] = {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": sorted(FACTS)}},
        "allOf": [_fact_schema(kind, FACTS[kind]) for kind in sorted(FACTS) if FACTS[kind].__struct_fields__],
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "verdict.json of Rankscope"}
    return {**head, **made}


def _fact_schema(kind: str, fact: type[Fact]) -> dict[str, Any]:
    names = list(fact.__struct_fields__)
    return {"if": {"properties": {"kind": {"const": kind}}}, "then": {"required": names}}


def schema_text() -> str:
    return json.dumps(schema(), indent=1) + "\n"


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
        SCHEMA_FILE.write_text(schema_text())
    elif "--schema" in sys.argv[1:]:
        sys.stdout.write(schema_text())
    else:
        sys.stdout.write(made)
