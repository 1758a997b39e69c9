"""The results of several tools on the same cases: judged alike, kept in one file."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from expectation import Case, accepted_lines
from judge import Judgement, Observation, blamed_ranks
from peer_output import ShownLine
from peers import PeerRun

EARLY_S = 1.0
"""A report that comes more than this before the fault is not about it."""


class ToolResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one tool made of one case."""

    case: str
    tool: str
    seen: bool
    """Something was reported, after the fault and within the limit."""
    seconds: float | None
    """From the fault to the report."""
    ranks: list[int]
    """Whom it named as the cause."""
    right_rank: bool | None
    """None: not judged, as the job is healthy or the culprit is no rank of it."""
    right_line: bool | None
    false_alarm: bool
    """A healthy job was reported as ill or ended; or a job was before anything was wrong with it."""
    exit_code: int | None
    said: str
    trouble: list[str] = []


class ToolRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When and with what a tool was last run."""

    date: str
    version: str


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a result file."""

    limit_s: float
    cores: int
    tools: dict[str, ToolRun]
    results: list[ToolResult]
    note: str = ""
    """What a reader must know of the measurement; shown with the totals."""


def read_comparison(path: Path) -> Comparison:
    """Raises FileNotFoundError, or msgspec.DecodeError that names the wrong field."""
    return msgspec.json.decode(path.read_bytes(), type=Comparison)


def write_comparison(path: Path, comparison: Comparison) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n")


def merged(old: Comparison, tools: dict[str, ToolRun], results: Iterable[ToolResult]) -> Comparison:
    """`old` with the new results in place of those of the same case and tool."""
    found = {(result.tool, result.case): result for result in (*old.results, *results)}
    kept = [found[key] for key in sorted(found)]
    return Comparison(old.limit_s, old.cores, {**old.tools, **tools}, kept, old.note)


def judge_peer(case: Case, tool: str, run: PeerRun) -> ToolResult:
    """A rank is right when every rank that is named is a culprit; a line when it is shown for a culprit's stack."""
    expect, report = case.expect, run.report
    early = report.at is not None and (run.fault_at is None or report.at < run.fault_at - EARLY_S)
    seen = report.at is not None and not expect.healthy and not early
    seconds = max(report.at - run.fault_at, 0.0) if seen and report.at and run.fault_at else None
    ended_badly = expect.healthy and run.exit_code not in (0, None)
    return ToolResult(
        case=case.name,
        tool=tool,
        seen=seen,
        seconds=None if seconds is None else round(seconds, 2),
        ranks=sorted(report.ranks),
        right_rank=seen and bool(report.ranks) and report.ranks <= expect.ranks if expect.ranks else None,
        right_line=seen and any(_shows(case, shown) for shown in report.shown) if expect.snippets else None,
        false_alarm=early or ended_badly or (expect.healthy and report.at is not None),
        exit_code=run.exit_code,
        said=_public(report.said)[:300],
        trouble=[_public(text) for text in run.trouble],
    )


def judge_rankscope(case: Case, tool: str, seen: Observation, judgement: Judgement) -> ToolResult:
    """The culprits of the verdict must be exactly those expected, and stand on an accepted line."""
    expect, verdict = case.expect, seen.verdict
    spoke = not expect.healthy and verdict is not None and bool(seen.announcements)
    right_rank, right_line = None, None
    if expect.ranks:
        right_rank = spoke and verdict is not None and blamed_ranks(verdict) == expect.ranks
    if expect.snippets:
        places = [culprit.where for culprit in verdict.culprits] if verdict is not None else []
        right_line = (
            spoke
            and bool(places)
            and all(place is not None and is_accepted(case, place.file, place.line) for place in places)
        )
    return ToolResult(
        case=case.name,
        tool=tool,
        seen=spoke,
        seconds=None if judgement.seconds is None or not spoke else round(max(judgement.seconds, 0.0), 2),
        ranks=sorted(blamed_ranks(verdict)) if verdict is not None else [],
        right_rank=right_rank,
        right_line=right_line,
        false_alarm=judgement.false_alarm,
        exit_code=seen.exit_code,
        said=_public(verdict.headline if verdict is not None else seen.verdict_missing)[:300],
        trouble=[_public(text) for text in judgement.problems],
    )


def is_accepted(case: Case, file: str, line: int) -> bool:
    """Whether the case expects the culprit on that line."""
    wanted = (case.folder / case.expect.file).resolve()
    numbers = {number for found in accepted_lines(case).values() for number in found}
    return (case.folder / file).resolve() == wanted and line in numbers


def _shows(case: Case, shown: ShownLine) -> bool:
    culprits = case.expect.ranks
    return is_accepted(case, shown.file, shown.line) and (shown.rank is None or not culprits or shown.rank in culprits)


def _public(text: str) -> str:
    """Without the paths of the machine that the zoo ran on."""
    shorter = text.replace(sys.executable, "python").replace(tempfile.gettempdir(), "$TMPDIR")
    return shorter.replace(f"{Path(__file__).resolve().parent.parent}/", "")
