"""Compares what a run gave with what its case expects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from expectation import Case, accepted_lines


class GotWhere(msgspec.Struct, frozen=True):
    file: str
    line: int
    function: str = ""


class GotCulprit(msgspec.Struct, frozen=True):
    rank: int | None
    process: str
    where: GotWhere | None = None
    doing: str = ""


class GotSide(msgspec.Struct, frozen=True):
    ranks: list[int]
    where: GotWhere | None = None


class GotVerdict(msgspec.Struct, frozen=True):
    """The fields of `verdict.json` that are judged."""

    outcome: str
    cause: str | None
    certainty: str
    culprits: list[GotCulprit]
    headline: str = ""
    sides: list[GotSide] = []


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of one run of a case."""

    exit_code: int | None
    """None: it did not end in time."""
    verdict: GotVerdict | None
    verdict_missing: str = ""
    """Why there is no verdict."""
    announcements: tuple[str, ...] = ()
    """The lines with which rankscope reported something wrong."""
    fault_at: float | None = None
    announced_at: float | None = None
    leftovers: tuple[str, ...] = ()
    """Processes of the run that were still there after it."""
    trouble: tuple[str, ...] = ()
    """What the runner itself could not do."""


@dataclass(frozen=True, slots=True)
class Judgement:
    right: bool
    wrong_blame: bool
    false_alarm: bool
    problems: tuple[str, ...]
    """Each as `expected ..., got ...`."""
    seconds: float | None
    """From the fault to the announcement."""


def judge(case: Case, seen: Observation) -> Judgement:
    expect = case.expect
    problems = [*seen.trouble]
    accepted = expect.exit_code if isinstance(expect.exit_code, list) else [expect.exit_code]
    if seen.exit_code not in accepted:
        got = "no end in time" if seen.exit_code is None else str(seen.exit_code)
        problems.append(f"exit code: expected {expect.exit_code}, got {got}")
    if expect.healthy and seen.announcements:
        problems.append(f"expected no report, got: {seen.announcements[0]}")
    if not expect.healthy and seen.fault_at is None:
        problems.append(f"the line {expect.fault_marker!r} never came")
    problems += (
        [f"no verdict: {seen.verdict_missing}"] if seen.verdict is None else verdict_problems(case, seen.verdict)
    )
    problems += [f"still running afterwards: {leftover}" for leftover in seen.leftovers]
    return Judgement(
        right=not problems,
        wrong_blame=_blames_wrongly(case, seen.verdict),
        false_alarm=expect.healthy and _alarmed(seen),
        problems=tuple(problems),
        seconds=_seconds(seen),
    )


def verdict_problems(case: Case, got: GotVerdict) -> list[str]:
    """Each as `expected ..., got ...`; empty where the verdict is right."""
    expect = case.expect
    problems = []
    if got.outcome != expect.outcome:
        problems.append(f"outcome: expected {expect.outcome}, got {got.outcome}")
    if got.cause != expect.cause:
        problems.append(f"cause: expected {expect.cause}, got {got.cause}")
    if expect.certainty is not None and got.certainty != expect.certainty:
        problems.append(f"certainty: expected {expect.certainty}, got {got.certainty}")
    if blamed_ranks(got) != expect.ranks:
        problems.append(f"rank: expected {ranks_text(expect.ranks)}, got {ranks_text(blamed_ranks(got))}")
    if expect.process is not None:
        others = sorted({culprit.process for culprit in got.culprits} - {expect.process})
        problems += [f"process: expected {expect.process}, got {other}" for other in others]
    return problems + _line_problems(case, got)


def _line_problems(case: Case, got: GotVerdict) -> list[str]:
    numbers = {number for found in accepted_lines(case).values() for number in found}
    if not numbers:
        return []
    wanted = (case.folder / case.expect.file).resolve()
    # Where nobody is to be named, the ways that the ranks went are what a person opens.
    places = [culprit.where for culprit in got.culprits] if case.expect.ranks else [side.where for side in got.sides]
    problems = []
    for where in places:
        if where is None or (case.folder / where.file).resolve() != wanted or where.line not in numbers:
            accepted = ", ".join(str(number) for number in sorted(numbers))
            problems.append(f"line: expected {case.expect.file}:{accepted}, got {place_text(where)}")
    return problems


def _blames_wrongly(case: Case, got: GotVerdict | None) -> bool:
    return got is not None and got.outcome != "ok" and not blamed_ranks(got) <= case.expect.ranks


def _alarmed(seen: Observation) -> bool:
    """A healthy run was reported as ill, or stopped."""
    ill = seen.verdict is not None and seen.verdict.outcome != "ok"
    return ill or bool(seen.announcements) or seen.exit_code == 75


def _seconds(seen: Observation) -> float | None:
    if seen.fault_at is None or seen.announced_at is None:
        return None
    return seen.announced_at - seen.fault_at


def blamed_ranks(verdict: GotVerdict) -> frozenset[int]:
    return frozenset(culprit.rank for culprit in verdict.culprits if culprit.rank is not None)


def ranks_text(ranks: frozenset[int]) -> str:
    return ",".join(str(rank) for rank in sorted(ranks)) or "-"


def place_text(where: GotWhere | None) -> str:
    return "-" if where is None else f"{Path(where.file).name}:{where.line}"
