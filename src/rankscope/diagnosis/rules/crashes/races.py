"""Ranks that race for one path: whether an error about it comes of another rank that makes or writes it."""

from __future__ import annotations

import re

from rankscope.diagnosis.facts.endings import MadeLater, YetToMake
from rankscope.diagnosis.rules.crashes.chains import short_type
from rankscope.diagnosis.rules.standing.frames import plain_name, source_line
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.views import innermost_user_frame, where
from rankscope.evidence.model import Evidence, Frame, RaisedException, RankEvidence

_PATH = re.compile(r"'([^']+)'")
_MAKES_FOLDER = re.compile(r"\b(?:mkdir|makedirs)\b")
_MISSES = re.compile(
    r"not found|(?:does|do) not exist|no such file|(?:can't|cannot|couldn't|could not) (?:find|load|open)", re.I
)
_TRUNCATED = re.compile(
    r"PytorchStreamReader failed|failed finding central directory|File is not a zip file|Ran out of input"
    r"|pickle data was truncated|unexpected EOF|EOF marker|Compressed file ended before|incomplete metadata"
)
"""A file of which only the beginning is there."""


def lost_a_race(rank: RankEvidence, exception: RaisedException, evidence: Evidence) -> bool:
    """Another rank must show that it had to do with the path: it passed the same line, or names the path."""
    others = [other for other in evidence.ranks if other.rank != rank.rank]
    found = _PATH.search(exception.message)
    if short_type(exception) == "FileExistsError":
        user = innermost_user_frame(exception.frames)
        inner = exception.frames[0] if exception.frames else None
        made = inner is not None and plain_name(inner) in {"mkdir", "makedirs"}
        if not made and not _MAKES_FOLDER.search(source_line(evidence, user)):
            return False
        # Where every rank failed alike, nobody won: the folder was there before.
        return any(not _raised(other, "FileExistsError") for other in others)
    if found is None:
        return False
    path = found[1]
    return any(_names(other, path) for other in others) or bool(misses_what_is_being_made(rank, exception, evidence))


def read_half_written(rank: RankEvidence, exception: RaisedException, evidence: Evidence) -> bool:
    """A file of which only a part was there, on this rank alone, and not one of its own: somebody was still writing."""
    if not _TRUNCATED.search(exception.message):
        return False
    if any(
        _TRUNCATED.search(each.message) for other in evidence.ranks if other is not rank for each in other.exceptions
    ):
        return False
    code = CodeReader(evidence)
    line = source_line(evidence, innermost_user_frame(exception.frames))
    return bool(line) and len(evidence.ranks) > 1 and not code.speaks_of_rank(line)


def misses_what_is_being_made(
    rank: RankEvidence, exception: RaisedException, evidence: Evidence
) -> MadeLater | YetToMake | None:
    """An error about a path that came into being after it, or that another rank has yet to make: that one is still in
    a branch of its own ahead of the line that failed."""
    if not _is_about_files(exception):
        return None
    for each in exception.paths:
        if each.changed_at is not None and exception.at is not None and each.changed_at > exception.at:
            return MadeLater(each.path, each.changed_at - exception.at)
    missing = short_type(exception) == "FileNotFoundError" or any(not each.exists for each in exception.paths)
    user = innermost_user_frame(exception.frames)
    if not missing or user is None:
        return None
    code = CodeReader(evidence)
    for other in evidence.ranks:
        at = where(_ahead(other, user, code)) if other.rank != rank.rank else None
        if at is not None:
            return YetToMake(other.rank, at)
    return None


def _is_about_files(exception: RaisedException) -> bool:
    return short_type(exception) in {"FileNotFoundError", "OSError", "NotADirectoryError"} or bool(
        exception.paths and _MISSES.search(exception.message)
    )


def _ahead(other: RankEvidence, failed: Frame, code: CodeReader) -> Frame | None:
    """Where a rank that runs stands before the line that failed, in the same function, under a condition on the rank
    that does not hold that line."""
    if other.exit is not None or not other.stacks:
        return None
    main = next((thread for thread in other.stacks[-1].threads if thread.main), None)
    for frame in main.frames if main is not None else ():
        if (frame.file, frame.function) == (failed.file, failed.function) and frame.line < failed.line:
            guard = code.guard((frame,))
            own = guard is not None and code.speaks_of_rank(guard[1].test) and not code.stands_under(guard, (failed,))
            return frame if own else None
    return None


def _raised(rank: RankEvidence, kind: str) -> bool:
    return any(
        kind in (short_type(each), *(earlier.type.rpartition(".")[2] for earlier in each.chain))
        for each in rank.exceptions
    )


def _names(rank: RankEvidence, path: str) -> bool:
    """A rank that itself misses the path is no proof that it makes it."""
    if any(path in each.message for each in rank.exceptions if each.type.endswith("FileNotFoundError")):
        return False
    calls = [sample.syscall for sample in rank.processes if sample.syscall is not None]
    return (
        any(path in each.message for each in rank.exceptions)
        or any(path in line for line in (*rank.output_tail, *rank.error_tail))
        or any((call.target or "").startswith(path) for call in calls)
    )
