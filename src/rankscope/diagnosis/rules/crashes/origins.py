"""What one rank that failed began by itself; nothing where it is a victim."""

from __future__ import annotations

import signal

import msgspec
from msgspec.structs import replace

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.endings import EndedWith, LogEndsWithTraceback
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.crashes.chains import Account, account_of, first_line, short_type
from rankscope.diagnosis.rules.crashes.deaths import explain_code, explain_signal, signal_of
from rankscope.diagnosis.rules.crashes.exceptions import explain_account
from rankscope.diagnosis.rules.crashes.known_errors import recognise_lines
from rankscope.diagnosis.rules.crashes.worker_deaths import explain_worker_death
from rankscope.evidence.model import Evidence, Exit, RaisedException, RankEvidence

_MAIN = "MainThread"
_STILL_ITS_END = 20
"""Lines that a program may write after the traceback that it ends with."""
_LONG_AGO_S = 60.0
_OWN_ABORTS = frozenset({"collective-mismatch", "out-of-memory-host"})


class Origin(msgspec.Struct, frozen=True):
    rank: RankEvidence
    finding: Finding
    at: float
    kind: str
    """The exception's type, or how it ended."""
    account: Account | None = None
    """Where an exception tells it."""


def origin_of(rank: RankEvidence, evidence: Evidence) -> Origin | None:
    """What this rank began; None when it is a victim, told by its words: a closed connection, a timeout, an abort."""
    if rank.exit is None:
        return None
    uncaught = uncaught_exception(rank)
    if uncaught is not None:
        return _raised(rank, rank.exit, account_of(rank, uncaught, evidence), evidence)
    ended_by = signal_of(rank)
    if ended_by is not None:
        return _signalled(rank, rank.exit, *ended_by, evidence)
    caught = noted_exception(rank)
    if caught is None:
        return Origin(rank, explain_code(rank, rank.exit, evidence), rank.exit.at, f"code {rank.exit.code}")
    return _chose_code(rank, rank.exit, account_of(rank, caught, evidence), evidence)


def uncaught_exception(rank: RankEvidence) -> RaisedException | None:
    """The exception that ended the rank: the one its hook saw; else the last printed, where nothing else ended it."""
    main = [each for each in rank.exceptions if each.thread == _MAIN]
    seen = [each for each in main if each.source in {"hook", "error-file"}]
    if seen:
        # A signal that comes after it, such as a crash while the interpreter is torn down, is its consequence.
        return seen[-1]
    printed = [each for each in main if each.source == "output"]
    if rank.exit is None or rank.exit.code < 0 or _chose_its_code(rank):
        return None
    return printed[-1] if printed else None


def noted_exception(rank: RankEvidence) -> RaisedException | None:
    """What a rank that ended itself was handling, or had logged right before, or what had ended one of its threads."""
    handled = [each for each in rank.exceptions if each.source == "exit"]
    printed = [each for each in rank.exceptions if each.source == "output" and _stands_at_the_end(each, rank)]
    logged = [each for each in printed if each.thread == _MAIN]
    threads = [each for each in rank.exceptions if each.source == "thread" and _shortly_before_the_end(each, rank)]
    threads = threads or [each for each in printed if each.thread != _MAIN]
    return next((found[-1] for found in (handled, logged, threads) if found), None)


def _stands_at_the_end(printed: RaisedException, rank: RankEvidence) -> bool:
    """Not much was written after it: what a program logged long ago has nothing to do with its end."""
    head = first_line(printed.message)
    words = f"{printed.type}: {head}" if head else printed.type
    for lines in (rank.error_tail, rank.output_tail):
        found = [at for at, line in enumerate(lines) if words in line]
        if found:
            return len(lines) - 1 - found[-1] - printed.message.count("\n") <= _STILL_ITS_END
    return True


def _shortly_before_the_end(error: RaisedException, rank: RankEvidence) -> bool:
    return error.at is None or rank.exit is None or rank.exit.at - error.at <= _LONG_AGO_S


def _chose_its_code(rank: RankEvidence) -> bool:
    """By sys.exit and the like; or, where the probe saw the end and no uncaught exception, by `raise SystemExit`."""
    progress = rank.progress
    return progress is not None and (bool(progress.exit_site) or progress.finalizing)


def _raised(rank: RankEvidence, exit_: Exit, account: Account, evidence: Evidence) -> Origin | None:
    if account.victim or account.came_of_lost_machine(evidence):
        return None
    finding = explain_worker_death(rank, account, evidence) or explain_account(rank, account, evidence)
    at = account.last.at if account.last.at is not None else exit_.at
    return Origin(rank, _with_end(finding, rank, exit_), at, short_type(account.told), account)


def _signalled(
    rank: RankEvidence, exit_: Exit, number: signal.Signals, certain: bool, evidence: Evidence
) -> Origin | None:
    lines = (*rank.error_tail, *rank.output_tail)
    if number == signal.SIGABRT and recognise_lines(lines, ("victim",)) is not None:
        # gloo aborts the process that receives a wrong size: its words outweigh a connection closed later.
        said = recognise_lines(lines, ("culprit",))
        if said is None or said.cause not in _OWN_ABORTS:
            return None
    return Origin(rank, explain_signal(rank, number, certain, evidence), exit_.at, number.name)


def _chose_code(rank: RankEvidence, exit_: Exit, account: Account, evidence: Evidence) -> Origin | None:
    """The program ended itself, and an exception tells why."""
    if account.victim or account.came_of_lost_machine(evidence):
        return None
    at = account.last.at if account.last.at is not None else exit_.at
    finding = replace(explain_account(rank, account, evidence), certainty="likely")
    if account.last.thread != _MAIN:
        # Nobody caught it: the thread is gone, and the program went on to its end without it.
        return Origin(rank, _with_end(finding, rank, exit_), at, short_type(account.told), account)
    if finding.cause != "exception":
        # A full disk, say, says more than the code.
        return Origin(rank, _with_end(finding, rank, exit_), at, short_type(account.told), account)
    return Origin(rank, explain_code(rank, exit_, evidence, account), at, f"code {exit_.code}", account)


def _with_end(finding: Finding, rank: RankEvidence, exit_: Exit) -> Finding:
    if _known_by_log_alone(rank):
        certainty = "likely" if finding.certainty == "proven" else finding.certainty
        return replace(finding, certainty=certainty, because=(*finding.because, LogEndsWithTraceback(rank.rank)))
    ended: Fact = EndedWith(rank.rank, exit_.code)
    return replace(finding, because=(*finding.because, ended))


def _known_by_log_alone(rank: RankEvidence) -> bool:
    """Nobody saw the process end; its log ends with a traceback."""
    return rank.pid == 0 and rank.log is not None and all(error.source == "output" for error in rank.exceptions)
