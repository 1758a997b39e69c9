"""What other tools say about a job, read from their output: which ranks they name, which source lines they show.

In doubt a reading favours the tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STOPPING = re.compile(r"Sending process \d+ closing signal")
FAILED = re.compile(r"failed \(exitcode: -?\d+\) local_rank: (\d+)")
ROOT_CAUSE = "Root Cause (first observed failure)"
ROOT_RANK = re.compile(r"^\s*rank\s*:\s*(\d+)")
SILENT = re.compile(r"\[RankMonServer\d+@[^\]]*:(\d+)\] Did not get (?:initial|subsequent) heartbeat")
FRAME = re.compile(r'^(?:\[rank(\d+)\]:)?.*File "([^"]+)", line (\d+)')
TRACEBACK = "Traceback (most recent call last)"

FINDING = re.compile(
    r"Not all ranks joining collective, sequence number: (\d+)"
    r"|Collective sequence number: (\d+) has errors"
    r"|Input/output mismatch in the collective sequence number: (\d+)"
)
MISSING = re.compile(r"^missing ranks: \{([\d, ]*)\}")
CULPRIT = re.compile(r"Culprit rank (\d+);")
GROUP = re.compile(r"^group info: (.*)")
STACK_FRAME = re.compile(r"^ ?\S.* at (/.*):(\d+)$")
NO_DUMP = re.compile(r"missed FR dumps from ranks \(\{([\d, ]*)\}\)")


@dataclass(frozen=True, slots=True)
class TimedLine:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A line of the user's code that a tool shows."""

    file: str
    line: int
    rank: int | None
    """Whose stack it is; None: the output does not tell."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one tool said of one job."""

    at: float | None
    """When it first said that something is wrong; None: never."""
    ranks: frozenset[int]
    """Whom it gives as the cause."""
    shown: tuple[ShownLine, ...]
    said: str
    """Its first line about it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of torchfrtrace."""

    group: str
    sequence: int | None
    ranks: frozenset[int]
    shown: tuple[ShownLine, ...]
    said: str


def read_torchrun(lines: Sequence[TimedLine], user_folder: str) -> Report:
    """torchrun names the rank under "Root Cause"; until it prints that, the one whose failure it logged first."""
    spoken = [line for line in lines if STOPPING.search(line.text) or FAILED.search(line.text)]
    named = [match for line in lines if (match := FAILED.search(line.text))]
    rank = _root_cause([line.text for line in lines])
    if rank is None and named:
        rank = int(named[0].group(1))
    return Report(
        at=spoken[0].at if spoken else None,
        ranks=frozenset() if rank is None else frozenset([rank]),
        shown=tracebacks((line.text for line in lines), user_folder),
        said=next((line.text for line in lines if FAILED.search(line.text)), spoken[0].text if spoken else ""),
    )


def read_ft_launcher(lines: Sequence[TimedLine], user_folder: str) -> Report:
    """ft_launcher names the ranks whose heartbeat it missed, or else the one whose failure it logged first."""
    spoken = [line for line in lines if any(form.search(line.text) for form in (SILENT, STOPPING, FAILED))]
    silent = [int(match.group(1)) for line in lines if (match := SILENT.search(line.text))]
    failed = [int(match.group(1)) for line in lines if (match := FAILED.search(line.text))]
    telling = (line.text for line in lines if SILENT.search(line.text) or FAILED.search(line.text))
    return Report(
        at=spoken[0].at if spoken else None,
        ranks=frozenset(silent or failed[:1]),
        shown=tracebacks((line.text for line in lines), user_folder),
        said=next(telling, spoken[0].text if spoken else ""),
    )


def read_torchfrtrace(output: str, user_folder: str) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    block: list[str] = []
    for line in output.splitlines():
        starts, absent = FINDING.search(line), NO_DUMP.search(line)
        if starts or absent:
            findings += _finding(block, user_folder)
            block = []
        if absent:
            findings.append(Finding("", None, _numbers(absent.group(1)), (), line))
        if starts or block:
            block.append(line)
    return (*findings, *_finding(block, user_folder))


def first_of_each_group(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Later findings of a group follow from its first: from there on the ranks are out of step."""
    first: dict[str, Finding] = {}
    for finding in findings:
        first.setdefault(finding.group, finding)
    return tuple(first.values())


def tracebacks(lines: Iterable[str], user_folder: str) -> tuple[ShownLine, ...]:
    """The innermost line of the user's code of every Python traceback."""
    innermost: dict[int | None, ShownLine] = {}
    shown: list[ShownLine] = []
    for line in lines:
        if TRACEBACK in line:
            shown += innermost.values()
            innermost = {}
        frame = FRAME.match(line)
        if frame is not None and frame.group(2).startswith(user_folder):
            rank = None if frame.group(1) is None else int(frame.group(1))
            innermost[rank] = ShownLine(frame.group(2), int(frame.group(3)), rank)
    return (*shown, *innermost.values())


def _root_cause(lines: Sequence[str]) -> int | None:
    start = next((number for number, line in enumerate(lines) if ROOT_CAUSE in line), None)
    if start is None:
        return None
    return next((int(match.group(1)) for line in lines[start:] if (match := ROOT_RANK.match(line))), None)


def _finding(block: Sequence[str], user_folder: str) -> list[Finding]:
    if not block:
        return []
    head = FINDING.search(block[0])
    assert head is not None
    group, ranks = "", frozenset[int]()
    for line in block:
        if match := GROUP.match(line):
            group = match.group(1)
        if match := MISSING.match(line):
            ranks |= _numbers(match.group(1))
        ranks |= {int(number) for number in CULPRIT.findall(line)}
    frames = [match for line in block if (match := STACK_FRAME.match(line))]
    users = [ShownLine(frame.group(1), int(frame.group(2)), None) for frame in frames]
    users = [frame for frame in users if frame.file.startswith(user_folder)]
    sequence = next(int(number) for number in head.groups() if number)
    return [Finding(group, sequence, ranks, tuple(users[:1]), block[0])]


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(number) for number in text.split(",") if number.strip())
