"""The reports of all ranks, and the verdict on their job, as the report of one test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from rankscope.diagnosis.codec import verdict_from_json
from rankscope.diagnosis.verdict import Verdict
from rankscope.report import terminal

_WIDTH = 100
_MOST_OUTPUT = 20_000
"""Characters of each stream of a rank; the whole of it is in the run's folder."""


@dataclass(frozen=True, slots=True)
class RankReport:
    rank: int
    phases: list[dict[str, Any]] | None
    """What its pytest reported of set-up, call and teardown; None where it did not come to an end."""
    out: str
    err: str

    @property
    def outcome(self) -> Literal["passed", "failed", "skipped", "xfailed", "xpassed", "none"]:
        if not self.phases:
            return "none"
        if any(phase["outcome"] == "failed" for phase in self.phases):
            return "failed"
        expected = [phase for phase in self.phases if phase["wasxfail"] is not None]
        if expected:
            return "xfailed" if any(phase["outcome"] == "skipped" for phase in expected) else "xpassed"
        return "skipped" if any(phase["outcome"] == "skipped" for phase in self.phases) else "passed"

    def text(self, outcome: str) -> str:
        return next((phase["text"] for phase in self.phases or () if phase["outcome"] == outcome), "")

    @property
    def expected(self) -> str:
        return next((phase["wasxfail"] for phase in self.phases or () if phase["wasxfail"] is not None), "")


@dataclass(frozen=True, slots=True)
class Result:
    outcome: Literal["passed", "failed", "skipped"]
    text: str = ""
    wasxfail: str | None = None
    sections: tuple[tuple[str, str], ...] = ()


def merge(ranks: list[RankReport], run: Path | None, timed_out_s: float | None) -> Result:
    """`run`: the folder of the job; None while it goes on. `timed_out_s`: the limit that it ran into."""
    outcomes = {report.outcome for report in ranks}
    verdict = _verdict(run) if run is not None else None
    sections = _sections(ranks)
    if outcomes == {"passed"} and (verdict is None or verdict.outcome == "ok"):
        return Result("passed", sections=sections)
    if outcomes == {"skipped"}:
        return Result("skipped", ranks[0].text("skipped"))
    if outcomes == {"xfailed"}:
        return Result("skipped", ranks[0].text("skipped"), wasxfail=ranks[0].expected)
    if outcomes == {"xpassed"}:
        return Result("passed", wasxfail=ranks[0].expected, sections=sections)
    told = _verdict_text(verdict, run, timed_out_s) if run is not None else []
    parts = [*told, *_uneven(ranks), *_failures(ranks, verdict)]
    if not parts and run is not None:
        parts = [f"the ranks did not start: see {run.parent / 'said'}\n{_said(run.parent / 'said')}"]
    return Result("failed", "\n\n".join(parts), sections=sections)


def _verdict_text(verdict: Verdict | None, run: Path, timed_out_s: float | None) -> list[str]:
    if verdict is None or verdict.outcome == "ok":
        return []
    late = [f"not over after {timed_out_s:g} s (timeout= of the mark)"] if timed_out_s is not None else []
    return [*late, terminal.render(verdict, color=False, width=_WIDTH, folder=str(run)).rstrip("\n")]


def _uneven(ranks: list[RankReport]) -> list[str]:
    """A test that ends in different ways on different ranks tests nothing."""
    ended = {report.rank: report.outcome for report in ranks if report.outcome != "none"}
    kinds = set(ended.values()) - {"failed"}
    if len(kinds) < 2:
        return []
    told = ", ".join(f"rank {rank} {outcome}" for rank, outcome in sorted(ended.items()))
    return [f"the ranks disagree about this test: {told}"]


def _failures(ranks: list[RankReport], verdict: Verdict | None) -> list[str]:
    """Of those that began it, where that is known: what the others say follows from it."""
    failed = [report for report in ranks if report.outcome == "failed"]
    guilty = {culprit.rank for culprit in verdict.culprits} if verdict is not None else set()
    shown = [report for report in failed if report.rank in guilty] or failed
    return [f"--- rank {report.rank} ---\n{report.text('failed')}" for report in shown]


def _sections(ranks: list[RankReport]) -> tuple[tuple[str, str], ...]:
    found = []
    for report in ranks:
        for stream, text in (("stdout", report.out), ("stderr", report.err)):
            if text.strip():
                found.append((f"Captured {stream} of rank {report.rank}", text[-_MOST_OUTPUT:]))
    return tuple(found)


def _verdict(run: Path) -> Verdict | None:
    try:
        return verdict_from_json((run / "verdict.json").read_bytes())
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def _said(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[-_MOST_OUTPUT:]
    except OSError:
        return ""


def reports(item: pytest.Item, result: Result, duration_s: float) -> list[pytest.TestReport]:
    """As pytest tells of any test: set-up, call, teardown."""
    longrepr: Any = result.text if result.outcome == "failed" else None
    if result.outcome == "skipped":
        path, line, _ = item.location
        longrepr = (path, (line or 0) + 1, result.text.removeprefix("Skipped: ") or result.wasxfail or "")
    told = []
    for when in ("setup", "call", "teardown"):
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            outcome=result.outcome if when == "call" else "passed",
            longrepr=longrepr if when == "call" else None,
            when=when,
            sections=list(result.sections) if when == "call" else (),
            duration=duration_s if when == "call" else 0.0,
        )
        if when == "call" and result.wasxfail is not None:
            report.wasxfail = result.wasxfail
        told.append(report)
    return told
