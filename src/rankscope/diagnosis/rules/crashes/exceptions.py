"""Classifies an exception that ended a rank, or that is pending in one: cause, line and fix."""

from __future__ import annotations

import re
from posixpath import basename

from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact, changed
from rankscope.diagnosis.facts.endings import CameOutAs, Means, Raised, RaisedWhileHandling, SeenAsException
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.crashes.chains import Account, account_of, first_line, known_error_of, short_type
from rankscope.diagnosis.rules.crashes.gpu_memory import advice_for, what_filled_it
from rankscope.diagnosis.rules.crashes.known_error import KnownError
from rankscope.diagnosis.rules.crashes.races import lost_a_race, misses_what_is_being_made, read_half_written
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import innermost_user_frame, rank_culprit, where
from rankscope.evidence.model import Evidence, Frame, RaisedException, RankEvidence

_WORKER = re.compile(r"in DataLoader worker process (\d+)")
_SPAWNED = re.compile(r"-- Process (\d+) terminated with the following error")
_ASKED_OF_GPU = re.compile(r"CUDA out of memory\. Tried to allocate [\d.]+ \w+")
_FATES = {"pending": "pending", "exit": "caught", "thread": "thread"}
_LONGEST = 160

_RAN_OUT = frozenset({"out-of-memory-host", "out-of-memory-gpu", "shm-exhausted", "fd-exhausted", "disk-full"})
"""Causes that stay true whatever the program made of the exception."""
_LIKELY = frozenset({"path-race", "address-unreachable", "collective-mismatch", "comm-error", "killed"})
_FIX: dict[str, tuple[Advice, ...]] = {
    "out-of-memory-host": (Advice("use-less-host-memory"), Advice("raise-memory-limit")),
    "out-of-memory-gpu": (Advice("use-less-gpu-memory"), Advice("own-gpu-each")),
    "import-failed": (Advice("install-module"),),
    "path-race": (Advice("create-on-one-rank"), Advice("write-and-rename")),
    "killed": (Advice("find-sender"),),
    "dataloader-stuck": (Advice("find-what-workers-wait-for"),),
}


def explain_exception(rank: RankEvidence, exception: RaisedException, evidence: Evidence) -> Finding:
    """What an exception of a rank means, whether it ended the rank or is still being handled in it."""
    return explain_account(rank, account_of(rank, exception, evidence), evidence)


def explain_account(rank: RankEvidence, account: Account, evidence: Evidence) -> Finding:
    told, cause, known = _cause_of_account(rank, account, evidence)
    at = place_of(account)
    raised = raised_fact(rank.rank, account, told)
    hidden = all(link.error is not told for link in account.links)
    raced = misses_what_is_being_made(rank, told, evidence) if cause == "path-race" else None
    filled = what_filled_it(rank, told, evidence) if cause == "out-of-memory-gpu" else ()
    return Finding(
        outcome="hang" if cause == "dataloader-stuck" else "crash",
        cause=cause,
        certainty="likely" if cause in _LIKELY or hidden else "proven",
        culprits=(rank_culprit(rank, raised, at),),
        summary=raised,
        because=(
            raised,
            *story(account, told),
            *((Means(known.name),) if known is not None else ()),
            *((raced,) if raced is not None else ()),
            *filled,
        ),
        fix=(*advice_for(filled), *((known.fix if known is not None else ()) or _FIX.get(cause) or _general_fix(at))),
        alternatives=()
        if cause == "exception"
        else (Possibility("exception", "possible", SeenAsException(short_type(told), at)),),
        references=(known.reference,) if known is not None and known.reference else (),
    )


def explain_unnamed(exception: RaisedException, tail: tuple[str, ...], evidence: Evidence) -> Finding:
    """An exception in lines of which no rank is known; `tail` is where they stand."""
    nobody = RankEvidence(rank=-1, local_rank=-1, host="", pid=0, started_at=evidence.started_at, error_tail=tail)
    finding = explain_exception(nobody, exception, evidence)
    [culprit] = finding.culprits
    nameless = tuple(changed(fact, rank=None) if isinstance(fact, Raised) else fact for fact in finding.because)
    return replace(
        finding,
        certainty="likely",
        culprits=(replace(culprit, rank=None, doing=nameless[0]),),
        summary=nameless[0],
        because=nameless,
    )


def raised_fact(rank: int | None, account: Account, told: RaisedException | None = None) -> Raised:
    told = told or account.told
    ended_by = account.last
    worker, spawned = _number(_WORKER, account), _number(_SPAWNED, account)
    return Raised(
        rank=rank,
        type=short_type(told),
        text=_short(_gist(first_line(told.message))),
        at=place_of(account),
        fate="thread" if ended_by.thread != "MainThread" else _FATES.get(ended_by.source, "uncaught"),
        loader_worker=worker,
        spawned=spawned,
        thread=ended_by.thread if ended_by.thread != "MainThread" else "",
    )


def place_of(account: Account) -> Where | None:
    """The innermost user frame of the first exception that has one; else the innermost frame of all."""
    return where_raised(account.told.frames) or next(
        (at for link in account.links if (at := where_raised(link.error.frames)) is not None), None
    )


def where_raised(frames: tuple[Frame, ...]) -> Where | None:
    """The innermost user frame; the innermost of all where the traceback has none of the user's."""
    found = innermost_user_frame(frames)
    if found is None:
        found = next((frame for frame in frames if not frame.native and not frame.file.startswith("<")), None)
    return where(found)


def _number(pattern: re.Pattern[str], account: Account) -> int | None:
    match = next((match for link in account.links if (match := pattern.search(link.error.message))), None)
    return int(match[1]) if match is not None else None


def story(account: Account, told: RaisedException) -> tuple[Fact, ...]:
    """What became of the first exception, and what the program was handling when it was raised."""
    facts: list[Fact] = []
    last = account.last
    if last is not told and (short_type(last), first_line(last.message)) != (
        short_type(told),
        first_line(told.message),
    ):
        at = where_raised(last.frames)
        led = next(link.led for link in (*account.hidden, *account.links) if link.error is told)
        facts.append(CameOutAs(short_type(told), short_type(last), _short(first_line(last.message)), at, led))
    handled = [link.error for link in account.hidden if link.led == "context"]
    if handled:
        first = handled[-1]
        facts.append(RaisedWhileHandling(short_type(told), short_type(first), where_raised(first.frames)))
    return tuple(facts)


def _cause_of_account(
    rank: RankEvidence, account: Account, evidence: Evidence
) -> tuple[RaisedException, str, KnownError | None]:
    """The exception that is told, its cause, and the table's entry.

    An exception inside a library that led to the one with the user's line may say more than that one does.
    """
    found = (account.told, *cause_of(rank, account.told, evidence))
    follows = True
    for link in reversed(account.links[: account.telling]):
        follows = follows and link.led != "context"
        cause, known = cause_of(rank, link.error, evidence)
        if cause != "exception" and (follows or cause in _RAN_OUT):
            found = (link.error, cause, known)
    if found[1] == "exception":
        for link in account.hidden:
            hidden, entry = cause_of(rank, link.error, evidence)
            if link.led == "suppressed" and hidden in _RAN_OUT:
                return link.error, hidden, entry
    return found


def cause_of(rank: RankEvidence, exception: RaisedException, evidence: Evidence) -> tuple[str, KnownError | None]:
    """The most special cause that the type and the text of an exception allow, with the table's entry."""
    kind = short_type(exception)
    if kind in {"MemoryError", "_ArrayMemoryError"}:
        return "out-of-memory-host", None
    if kind == "OutOfMemoryError":
        return "out-of-memory-gpu", None
    known = known_error_of(exception)
    special = known.cause if known is not None and known.cause is not None else None
    if kind in {"ModuleNotFoundError", "ImportError"}:
        return (special, known) if special == "out-of-memory-host" else ("import-failed", None)
    if kind == "KeyboardInterrupt":
        return "killed", None
    if kind in {"FileExistsError", "FileNotFoundError"}:
        return ("path-race" if lost_a_race(rank, exception, evidence) else "exception"), None
    if "DataLoader timed out after" in exception.message:
        return "dataloader-stuck", None
    if read_half_written(rank, exception, evidence) or misses_what_is_being_made(rank, exception, evidence):
        return "path-race", None
    return special or "exception", known


def _general_fix(at: Where | None) -> tuple[Advice, ...]:
    mend = Advice("mend-error") if at is None else Advice("mend-error-at", file=basename(at.file), line=at.line)
    return (mend, Advice("handle-on-all-ranks"))


def _gist(line: str) -> str:
    """Of a GPU's memory that ran out: what was asked for. Who held it is told in facts of its own."""
    asked = _ASKED_OF_GPU.match(line)
    return asked[0] if asked is not None else line


def _short(line: str) -> str:
    line = line.removesuffix(":")
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
