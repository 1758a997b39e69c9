"""Tells among the ranks that ended who began it and who only failed as a consequence."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.crashes.deaths import explain_code, explain_signal, explain_worker_death, signal_of
from rankscope.diagnosis.rules.crashes.exceptions import explain_exception, message_of, original_of
from rankscope.diagnosis.rules.crashes.known_errors import recognise_lines
from rankscope.diagnosis.rules.crashes.left import explain_left
from rankscope.diagnosis.rules.crashes.models_differ import odd_models
from rankscope.diagnosis.views import place, rank_culprit, ranks_text, where
from rankscope.evidence.model import Evidence, RaisedException, RankEvidence

__all__ = ["Endings", "explain_endings", "explain_exception", "explain_left"]

_EXIT_CODE_HANDICAP_S = 5.0
"""A victim may end itself quickly with a code of its own, before the culprit's process is seen to be gone."""
_SEEN_LATE_S = 1.0
"""The launcher looks at its processes one after another: nearly equal times have no order."""
_SAME_MOMENT_S = 0.25
_NEWEST = 4
"""So many calls back a failed collective may have led to an error."""
_OF_SHARED_FILES = frozenset(
    {
        *("OSError", "FileNotFoundError", "FileExistsError", "PermissionError", "IsADirectoryError", "BlockingIOError"),
        *("EOFError", "UnpicklingError", "JSONDecodeError", "BadZipFile", "SafetensorError", "UnicodeDecodeError"),
    }
)
"""Errors that a rank also meets where another one has left a file unwritten or half-written."""
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


@dataclass(frozen=True, slots=True)
class Endings:
    origin: Finding | None
    """Who began it, among the ranks that ended with a failure; None when all of them are victims, or none failed."""
    victims: tuple[int, ...]
    left: tuple[int, ...]
    """Ranks that ended with code 0 while others had not finished."""


@dataclass(frozen=True, slots=True)
class _Origin:
    rank: RankEvidence
    finding: Finding
    at: float
    kind: str
    """The exception's type, or how it ended."""


def explain_endings(evidence: Evidence) -> Endings:
    """Pure victims are told by their words: a closed connection, a timeout, an abort by the watchdog."""
    failed = [rank for rank in evidence.ranks if rank.exit and rank.exit.code != 0 and not rank.exit.by_launcher]
    origins: list[_Origin] = []
    victims: list[int] = []
    for rank in failed:
        origin = _origin(rank, evidence)
        if origin is None:
            victims.append(rank.rank)
        else:
            origins.append(origin)
    origins, unreached = _without_unreached_masters(origins, evidence)
    victims += unreached
    odd = odd_models(evidence)
    if any(origin.rank.rank in odd for origin in origins):
        victims += [origin.rank.rank for origin in origins if origin.rank.rank not in odd]
        origins = [origin for origin in origins if origin.rank.rank in odd]
    finding: Finding | None = None
    if origins:
        finding, also = _decide(origins, tuple(victims))
        if finding.cause == "address-unreachable":
            finding = _with_those_connecting(finding, evidence)
        victims += also
    return Endings(finding, tuple(sorted(victims)), _left(evidence, frozenset(victims)))


def _origin(rank: RankEvidence, evidence: Evidence) -> _Origin | None:
    """What this rank began; None when it is a victim."""
    exit_ = rank.exit
    if exit_ is None:
        return None
    exception = _deciding_exception(rank)
    if exception is not None:
        if _is_consequence(rank, exception):
            return None
        at = exception.at if exception.at is not None else exit_.at
        dead_worker = explain_worker_death(rank, exception, evidence)
        finding = dead_worker or explain_exception(rank, exception, evidence)
        return _Origin(rank, _with_code(finding, rank), at, exception.type.rpartition(".")[2])
    ended_by = signal_of(rank)
    if ended_by is not None:
        number, certain = ended_by
        aborted = number == signal.SIGABRT
        if aborted and recognise_lines((*rank.error_tail, *rank.output_tail), ("victim",)) is not None:
            return None if not _own_abort(rank) else _signalled(rank, number, certain, evidence)
        return _signalled(rank, number, certain, evidence)
    if _printed_consequence(rank):
        return None
    special = _printed_special(rank, evidence)
    return _Origin(rank, special or explain_code(rank, exit_, evidence), exit_.at, f"code {exit_.code}")


def _signalled(rank: RankEvidence, number: signal.Signals, certain: bool, evidence: Evidence) -> _Origin:
    at = rank.exit.at if rank.exit is not None else evidence.collected_at
    return _Origin(rank, explain_signal(rank, number, certain, evidence), at, number.name)


def _own_abort(rank: RankEvidence) -> bool:
    """gloo aborts the process that receives a wrong size: its words outweigh a connection closed later."""
    said = recognise_lines((*rank.error_tail, *rank.output_tail), ("culprit",))
    return said is not None and said.cause in {"collective-mismatch", "out-of-memory-host"}


def _deciding_exception(rank: RankEvidence) -> RaisedException | None:
    """The exception that ended the rank: the one its hook saw; else the last printed, where nothing else ended it."""
    main = [each for each in rank.exceptions if each.source != "pending" and each.thread == "MainThread"]
    seen = [each for each in main if each.source in {"hook", "error-file"}]
    code = rank.exit.code if rank.exit is not None else 0
    if seen:
        # A signal that comes after it, such as a crash while the interpreter is torn down, is its consequence.
        return _own_of_chain(rank, seen[-1])
    chose_code = rank.progress is not None and bool(rank.progress.exit_site)
    if code < 0 or chose_code or not main:
        return None
    return _own_of_chain(rank, main[-1])


def _own_of_chain(rank: RankEvidence, last: RaisedException) -> RaisedException:
    """Of a chain the last counts, unless it is a mere consequence that covers the rank's own error."""
    first = _chain(rank, last)[0]
    return first if _says_victim(rank, last) and not _says_victim(rank, first) else last


def _is_consequence(rank: RankEvidence, exception: RaisedException) -> bool:
    """Also an error of its own that a rank raised because of a broken connection is a consequence."""
    return _says_victim(rank, exception) or _says_victim(rank, _chain(rank, exception)[0])


def _says_victim(rank: RankEvidence, exception: RaisedException) -> bool:
    known = message_of(original_of(rank, exception))
    return known is not None and known.role == "victim"


def _chain(rank: RankEvidence, last: RaisedException) -> tuple[RaisedException, ...]:
    """The exceptions that led to the last one, as the printed traceback links them, oldest first."""
    printed = [each for each in rank.exceptions if each.source == "output"]
    text = "\n".join((*rank.output_tail, *rank.error_tail))
    at = next((n for n in reversed(range(len(printed))) if _alike(printed[n], last)), None)
    chain = [last]
    while at is not None and at > 0 and _linked(text, printed[at - 1], printed[at]):
        at -= 1
        chain.insert(0, replace(printed[at], at=last.at))
    return tuple(chain)


def _alike(one: RaisedException, other: RaisedException) -> bool:
    return one.type.rpartition(".")[2] == other.type.rpartition(".")[2] and _head(one)[1] == _head(other)[1]


def _head(exception: RaisedException) -> tuple[str, str]:
    return exception.type, exception.message.strip().partition("\n")[0]


def _linked(text: str, earlier: RaisedException, later: RaisedException) -> bool:
    begin, end = (text.rfind(": ".join(filter(None, _head(each)))) for each in (earlier, later))
    return 0 <= begin < end and any(mark in text[begin:end] for mark in _CHAIN)


def _printed_consequence(rank: RankEvidence) -> bool:
    """The program caught the error, printed it and ended itself with a code."""
    printed = [each for each in rank.exceptions if each.source == "output"]
    return bool(printed) and _is_consequence(rank, printed[-1])


def _printed_special(rank: RankEvidence, evidence: Evidence) -> Finding | None:
    """A caught and printed error of a known kind, such as a full disk, says more than the exit code."""
    printed = [each for each in rank.exceptions if each.source == "output" and each.thread == "MainThread"]
    if not printed:
        return None
    finding = explain_exception(rank, printed[-1], evidence)
    return replace(_with_code(finding, rank), certainty="likely") if finding.cause != "exception" else None


def _with_code(finding: Finding, rank: RankEvidence) -> Finding:
    if rank.exit is None:
        return finding
    return replace(finding, because=(*finding.because, f"rank {rank.rank} ended with code {rank.exit.code}"))


def _without_unreached_masters(origins: list[_Origin], evidence: Evidence) -> tuple[list[_Origin], list[int]]:
    """A rank that cannot reach the master is a victim where rank 0 itself failed otherwise, left, or never listened."""
    master = next((rank for rank in evidence.ranks if rank.rank == 0), None)
    if master is None:
        return origins, []
    unreached = [each for each in origins if _names_address(each)]
    if any(each.rank.rank == 0 for each in unreached) or _connecting(master):
        return origins, []
    victims = {each.rank.rank for each in unreached}
    return [each for each in origins if each.rank.rank not in victims], sorted(victims)


def _with_those_connecting(finding: Finding, evidence: Evidence) -> Finding:
    """Ranks that still try the same address have the same mistake; their time has not run out yet."""
    more = []
    for rank in evidence.ranks:
        if _connecting(rank):
            call = next(c for c in rank.progress.calls if c.op == "init_process_group") if rank.progress else None
            at = where(call.site[0]) if call is not None and call.site else None
            more.append(rank_culprit(rank, "still tries to connect to the same address", at))
    return replace(finding, culprits=(*finding.culprits, *more))


def _connecting(master: RankEvidence) -> bool:
    """Rank 0 is alive and has not got past the connection either."""
    progress = master.progress
    calls = progress.calls if progress is not None else ()
    return master.exit is None and any(call.op == "init_process_group" and call.left_at is None for call in calls)


def _names_address(origin: _Origin) -> bool:
    exception = _deciding_exception(origin.rank)
    known = message_of(exception) if exception is not None else None
    return known is not None and known.role == "neutral" and known.cause == "address-unreachable"


def _decide(origins: list[_Origin], victims: tuple[int, ...]) -> tuple[Finding, list[int]]:
    """The earliest origin with those that failed alike, and the later ones, which become victims."""
    ordered = sorted(origins, key=_order)
    first = ordered[0]
    alike = [each for each in ordered[1:] if _same_failure(first, each)]
    beside = [each for each in ordered[1:] if each not in alike and _of_its_own(first, each)]
    rest = [each for each in ordered[1:] if each not in alike and each not in beside]
    later = [each for each in rest if each.at >= first.at]
    more = [culprit for each in (*alike, *beside) for culprit in each.finding.culprits]
    culprits = (*first.finding.culprits, *more)
    because = list(first.finding.because)
    if beside:
        because.append("at the same time, for a reason of their own: " + "; ".join(e.finding.summary for e in beside))
    if alike:
        because.append(f"{ranks_text([each.rank.rank for each in alike])} failed in the same way")
    if later:
        because.append(
            f"{ranks_text([each.rank.rank for each in later])} failed {later[0].at - first.at:.1f} s later or more"
        )
    if victims:
        because.append(f"{ranks_text(victims)} failed only as a consequence: a closed connection or a timeout")
    earlier = tuple(
        Possibility(each.finding.cause, "possible", f"earlier, {each.finding.summary}")
        for each in rest
        if each.at < first.at
    )
    others = tuple(
        Possibility(each.finding.cause, "possible", f"also, {each.finding.summary}")
        for each in later
        if each.finding.cause != first.finding.cause
    )
    finding = replace(
        first.finding,
        culprits=culprits,
        because=tuple(because),
        alternatives=(*first.finding.alternatives, *earlier, *others),
        summary="; ".join((_summary(first, alike), *(each.finding.summary for each in beside))),
    )
    if beside:
        finding = replace(finding, fix=("mend each of these errors: none of them is a consequence of another",))
    return finding, [each.rank.rank for each in later]


def _summary(first: _Origin, alike: list[_Origin]) -> str:
    if not alike:
        return first.finding.summary
    numbers = [each.rank.rank for each in (first, *alike)]
    at = first.finding.culprits[0].where
    return f"{ranks_text(numbers)} failed with {first.kind}" + (f" in {place(at)}" if at is not None else "")


def _order(origin: _Origin) -> tuple[float, int]:
    handicap = _EXIT_CODE_HANDICAP_S if origin.finding.cause == "exit-code" else 0.0
    return origin.at + handicap, origin.rank.rank


def _of_its_own(first: _Origin, other: _Origin) -> bool:
    """An error raised at the same moment, outside of any collective, that no file of the other rank can have caused."""
    if first.finding.cause != "exception" or other.finding.cause != "exception":
        return False
    if abs(other.at - first.at) > _SAME_MOMENT_S or other.kind in _OF_SHARED_FILES or first.kind in _OF_SHARED_FILES:
        return False
    progress = other.rank.progress
    calls = progress.calls if progress is not None else ()
    return progress is not None and not any(call.failed for call in calls[-_NEWEST:])


def _same_failure(one: _Origin, other: _Origin) -> bool:
    if one.finding.cause != other.finding.cause:
        return False
    place_of_one, place_of_other = one.finding.culprits[0].where, other.finding.culprits[0].where
    return one.kind == other.kind or (place_of_one is not None and place_of_one == place_of_other)


def _left(evidence: Evidence, victims: frozenset[int]) -> tuple[int, ...]:
    found: list[int] = []
    for rank in evidence.ranks:
        if rank.exit is None or rank.exit.code != 0 or rank.exit.by_launcher:
            continue
        left_at = rank.exit.at
        if any(_not_finished(other, left_at, victims) for other in evidence.ranks if other.rank != rank.rank):
            found.append(rank.rank)
    return tuple(found)


def _not_finished(other: RankEvidence, left_at: float, victims: frozenset[int]) -> bool:
    if other.exit is None:
        return True
    needed = other.rank in victims or other.exit.by_launcher
    return needed and other.exit.at >= left_at - _SEEN_LATE_S
