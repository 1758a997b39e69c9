"""The tables of docs/nccl.md, from what `zoo/run.py --nccl --json FILE` wrote.

python zoo/gpu_table.py FILE...     every program once: of one that is in several files, what the last one says
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from expectation import NCCL_CASES, Case, case_names, load_case

KINDS: tuple[tuple[str, Callable[[Case], bool]], ...] = (
    ("Hangs and crashes", lambda case: case.expect.outcome in ("hang", "crash")),
    ("Wrong numbers", lambda case: case.expect.outcome == "corrupt"),
    ("Sound and slow ones", lambda case: case.expect.healthy),
)
_SENTENCE = re.compile(r"(?<=[a-z0-9)])[.;:] ")
_LONGEST = 150
_WAITED = "--stall-after"

Row = dict[str, Any]


def document(rows: Iterable[Row]) -> str:
    """The totals, the seconds, and a table of each kind."""
    told = {row["case"]: row for row in rows}
    cases = [case for name in case_names(NCCL_CASES) if (case := load_case(name, NCCL_CASES)).name in told]
    parts = [totals(told.values()), seconds(cases, told)]
    for title, belongs in KINDS:
        chosen = [case for case in cases if belongs(case)]
        if chosen:
            parts.append(f"### {title}\n\n{table(chosen, told)}")
    return "\n\n".join(parts) + "\n"


def totals(rows: Iterable[Row]) -> str:
    known = list(rows)
    right, blames, alarms = (sum(row[key] for row in known) for key in ("right", "wrong_blame", "false_alarm"))
    return f"**{right} of {len(known)} right, {blames} wrong blame, {alarms} false alarms.**"


def seconds(cases: Sequence[Case], told: dict[str, Row]) -> str:
    """From the program's mark before the fault to the announcement, by what had to be waited for."""

    def waits(case: Case) -> bool:
        asked = any(option.startswith(_WAITED) for option in case.expect.options)
        return asked and told[case.name]["certainty"] != "proven"

    kinds: tuple[tuple[str, Callable[[Case], bool]], ...] = (
        ("hangs and crashes that are seen at once", lambda case: not waits(case) and not _is_corrupt(case)),
        ("wrong numbers, told while the job goes on", _is_corrupt),
        (f"likely hangs with `{_WAITED} 10`", waits),
    )
    lines = ["| told | programs | after the fault, median | worst |", "| --- | ---: | ---: | ---: |"]
    for title, belongs in kinds:
        rows = [told[case.name] for case in cases if not case.expect.healthy and belongs(case)]
        took = sorted(row["seconds"] for row in rows if row["right"] and row["seconds"] is not None)
        if took:
            lines.append(f"| {title} | {len(took)} | {statistics.median(took):.1f} s | {took[-1]:.1f} s |")
    return "\n".join(lines)


def _is_corrupt(case: Case) -> bool:
    return case.expect.outcome == "corrupt"


def table(cases: Sequence[Case], told: dict[str, Row]) -> str:
    lines = ["| program | what happens | told | rank | seconds |", "| --- | --- | --- | --- | ---: |"]
    for case in cases:
        row = told[case.name]
        words = ", ".join(filter(None, (row["outcome"], row["cause"], row["certainty"] if row["cause"] else None)))
        ranks = ", ".join(map(str, row["ranks"])) or "–"
        took = "–" if row["seconds"] is None or case.expect.healthy else f"{row['seconds']:.1f}"
        verdict = words or "no verdict"
        shown = verdict if row["right"] else f"**{verdict}**"
        lines.append(f"| {case.name} | {what_happens(case)} | {shown} | {ranks} | {took} |")
    return "\n".join(lines)


def what_happens(case: Case) -> str:
    """The first sentences of the description, as many as are short."""
    whole = case.expect.description.strip().rstrip(".").replace("|", "/")
    if len(whole) <= _LONGEST:
        return whole
    ends = [match.start() for match in _SENTENCE.finditer(whole) if 40 < match.start() <= _LONGEST]
    return whole[: ends[-1]] if ends else whole


def main(argv: Sequence[str]) -> int:
    if not argv:
        print("usage: gpu_table.py FILE...", file=sys.stderr)
        return 2
    print(document(row for path in argv for row in json.loads(Path(path).read_bytes())), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
