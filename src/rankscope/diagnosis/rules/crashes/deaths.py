"""Explains how a rank's process ended where no exception tells it: signals and exit codes."""

from __future__ import annotations

import re
import signal
from posixpath import basename

from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact, changed
from rankscope.diagnosis.facts.endings import (
    ChoseCode,
    EndedBySignal,
    EndedWith,
    HandledSignals,
    InterpreterWasLeaving,
    Means,
    MemoryKiller,
    NoMemoryKillerSeen,
    PrintedTraceback,
    RaisesThatCode,
    Remark,
    SignalMayComeFromElsewhere,
)
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.crashes.chains import Account
from rankscope.diagnosis.rules.crashes.exceptions import raised_fact, story
from rankscope.diagnosis.rules.crashes.handlers import branch_around
from rankscope.diagnosis.rules.crashes.known_error import KnownError
from rankscope.diagnosis.rules.crashes.known_errors import neutral_errors, recognise_lines
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import innermost_user_frame, rank_culprit, where
from rankscope.evidence.model import Evidence, Exit, RankEvidence

NATIVE = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP})
_OF_THE_LOADER = 127
"""The code with which the dynamic loader ends a process that it cannot go on with."""
_THROWN = "what():"
_NO_EXCEPTION = "terminate called without an active exception"
_OOM_LINE = re.compile(r"(?i)out of memory|oom-kill|killed process|oom_reaper")
_SPECIAL_OF_ABORT = frozenset(
    {"out-of-memory-host", "out-of-memory-gpu", "collective-mismatch", "shm-exhausted", "fd-exhausted", "comm-error"}
)
NATIVE_FIX = (Advice("look-at-native-code"), Advice("run-it-alone"))
_LEAVING_FIX = (Advice("destroy-group-first"), Advice("finish-async-work"))
MEMORY_FIX = (Advice("load-less-memory"), Advice("raise-memory-limit"))
KILLED_FIX = (Advice("find-who-sent-signal"), Advice("look-for-memory-killer"))


def signal_of(rank: RankEvidence) -> tuple[signal.Signals, bool] | None:
    """The signal that ended a rank, and whether it is certain: a shell around the rank reports 128 + N."""
    if rank.exit is None:
        return None
    code = rank.exit.code
    chosen = rank.progress is not None and bool(rank.progress.exit_site)
    number = -code if code < 0 else code - 128 if code > 128 and not chosen else 0
    try:
        return signal.Signals(number), code < 0
    except ValueError:
        return None


def explain_signal(rank: RankEvidence, number: signal.Signals, certain: bool, evidence: Evidence) -> Finding:
    """The most special of what the last words, the signal and the memory killer say."""
    said = _last_words(rank, number)
    if said is not None and said.cause is not None:
        finding = _signalled(rank, number, certain, said.cause, Means(said.name, last_words=True))
        return replace(
            finding,
            certainty="likely",
            fix=said.fix or NATIVE_FIX,
            alternatives=(Possibility("native-crash", "possible", _ended(rank, number, certain, "native-crash")),),
            references=(said.reference,) if said.reference else (),
        )
    if number in NATIVE:
        leaving = _leaving_facts(rank)
        finding = _signalled(rank, number, certain, "native-crash", *leaving)
        return replace(finding, fix=(*_LEAVING_FIX, *NATIVE_FIX) if leaving else NATIVE_FIX)
    killer = memory_killer(rank, rank.pid, evidence) if number == signal.SIGKILL else None
    if killer is not None:
        finding = _signalled(rank, number, certain, "out-of-memory-host", killer)
        elsewhere = Possibility("killed", "possible", SignalMayComeFromElsewhere())
        return replace(finding, certainty="likely", fix=MEMORY_FIX, alternatives=(elsewhere,))
    finding = replace(_signalled(rank, number, certain, "killed"), fix=KILLED_FIX)
    if number != signal.SIGKILL:
        return finding
    memory = Possibility("out-of-memory-host", "possible", _no_memory_evidence(rank, evidence))
    return replace(finding, alternatives=(memory,))


def _last_words(rank: RankEvidence, number: signal.Signals) -> KnownError | None:
    """Of a rank that a native error ended: the known text that tells of a special cause."""
    if number not in {signal.SIGABRT, signal.SIGBUS}:
        return None
    said = recognise_lines((*rank.error_tail, *rank.output_tail), ("culprit",))
    # Torn shared memory is the usual reason of a bus error, but only its own words prove it.
    special = {"shm-exhausted"} if number == signal.SIGBUS else _SPECIAL_OF_ABORT
    if said is not None and said.cause in special:
        return said
    # A thread of torch may end the process before the program's own thread has raised what it is about.
    own = recognise_lines([line for line in rank.error_tail if _THROWN in line], ("culprit",))
    return own if own is not None and own.cause == "exception" else None


def _leaving_facts(rank: RankEvidence) -> tuple[Fact, ...]:
    if rank.progress is None or not rank.progress.finalizing:
        return ()
    return (InterpreterWasLeaving(rank.rank, any(_NO_EXCEPTION in line for line in rank.error_tail)),)


def _ended(rank: RankEvidence, number: signal.Signals, certain: bool, cause: str) -> EndedBySignal:
    return EndedBySignal(
        rank=rank.rank,
        pid=rank.pid,
        signal=number.name,
        at=_last_place(rank),
        cause=cause,
        leaving=rank.progress is not None and rank.progress.finalizing,
        code=None if certain or rank.exit is None else rank.exit.code,
    )


def _signalled(rank: RankEvidence, number: signal.Signals, certain: bool, cause: str, *because: Fact) -> Finding:
    ended = _ended(rank, number, certain, cause)
    remarks = (Remark(known.name) for known in neutral_errors((*rank.error_tail, *rank.output_tail)))
    return Finding(
        outcome="crash",
        cause=cause,
        certainty="proven" if certain else "likely",
        culprits=(rank_culprit(rank, ended, ended.at),),
        summary=ended,
        because=(ended, *because, *remarks),
    )


def explain_code(rank: RankEvidence, exit_: Exit, evidence: Evidence, caught: Account | None = None) -> Finding:
    """The program chose its exit code itself; `caught` is the exception that made it do so, where it is known."""
    progress = rank.progress
    site = where(progress.exit_site[0]) if progress is not None and progress.exit_site else None
    ended = EndedWith(rank.rank, exit_.code, progress.exit_note if progress is not None else "", site, chosen=True)
    because: list[Fact] = [ended]
    if site is None and (site := _raised_exit(exit_.code, evidence)) is not None:
        because.append(RaisesThatCode(site, branch_around(site, evidence)))
    if progress is not None and progress.signals:
        because.append(HandledSignals(progress.signals))
    at, raised = site, None
    alternatives: tuple[Possibility, ...] = ()
    if caught is not None:
        raised = changed(raised_fact(rank.rank, caught), fate="caught")
        at = raised.at or site
        because = [raised, *story(caught, caught.told), *because]
        alternatives = (Possibility("exception", "possible", PrintedTraceback(raised.type, raised.at)),)
    said = recognise_lines(rank.error_tail, ("culprit",)) if exit_.code == _OF_THE_LOADER and at is None else None
    if said is not None and said.cause == "out-of-memory-host":
        chosen = changed(ended, chosen=False)
        return Finding(
            outcome="crash",
            cause=said.cause,
            certainty="likely",
            culprits=(rank_culprit(rank, chosen, None),),
            summary=chosen,
            because=(chosen, Means(said.name, last_words=True)),
            fix=said.fix or MEMORY_FIX,
        )
    chose = ChoseCode(rank.rank, exit_.code, at, raised)
    see = (
        Advice("see-output-for-end") if at is None else Advice("see-why-it-ends", file=basename(at.file), line=at.line)
    )
    return Finding(
        outcome="crash",
        cause="exit-code",
        certainty="proven",
        culprits=(rank_culprit(rank, chose, at),),
        summary=chose,
        because=tuple(because),
        fix=(see, Advice("end-together")),
        alternatives=alternatives,
    )


def _raised_exit(code: int, evidence: Evidence) -> Where | None:
    """`raise SystemExit(n)` leaves no trace, unlike sys.exit(n): the program's text tells, where one place alone can
    have given the code."""
    found = CodeReader(evidence).exits_by_raise()
    exact = [each for each in found if each[3] == code]
    fitting = exact or [each for each in found if each[3] is None]
    if len(fitting) != 1:
        return None
    file, line, function, _ = fitting[0]
    return Where(file=file, line=line, function=function)


def _last_place(rank: RankEvidence) -> Where | None:
    """Where the rank stood when it died: the dump of the fatal signal, else the call it had not left."""
    if rank.crash_stack:
        return where(innermost_user_frame(rank.crash_stack))
    if rank.progress is not None:
        inside = [call for call in rank.progress.calls if call.left_at is None and call.site]
        if inside:
            return where(inside[0].site[0])
    return None


def memory_killer(rank: RankEvidence, pid: int, evidence: Evidence) -> MemoryKiller | None:
    """What says that the kernel's memory killer did it; None when nothing does."""
    for host in (each for each in evidence.hosts if each.host == rank.host):
        named = [line for line in host.kernel_log if _OOM_LINE.search(line)]
        exact = next((line for line in named if re.search(rf"\b{pid}\b", line)), None)
        if exact is not None or named:
            return MemoryKiller(line=exact or named[-1])
        if host.oom_kills:
            return MemoryKiller(kills=host.oom_kills)
    return None


def _no_memory_evidence(rank: RankEvidence, evidence: Evidence) -> NoMemoryKillerSeen:
    return NoMemoryKillerSeen(
        tuple(reason for host in evidence.hosts if host.host == rank.host for reason in host.missing.values())
    )
