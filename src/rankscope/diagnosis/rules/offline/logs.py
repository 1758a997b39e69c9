"""Causes told by logs alone: whom the messages of the waiting ranks point to, and who fell silent."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.logs import (
    DidNotReach,
    FellSilent,
    JoinedStore,
    MasterAbsent,
    MasterHandsOutId,
    May,
    NotAtInit,
    OnlySuffered,
    PeerWentAway,
    StaleStore,
    Suffered,
    WroteKnown,
)
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.crashes.exceptions import explain_unnamed
from rankscope.diagnosis.rules.crashes.known_errors import recognise
from rankscope.diagnosis.rules.offline import log_facts
from rankscope.diagnosis.rules.offline.log_phases import FIRST_GATHER
from rankscope.diagnosis.rules.offline.log_ranks import KERNEL, OWN_LOG, RERUN, STACK, culprit, last_line, seen_rank
from rankscope.diagnosis.rules.offline.log_waits import explain_named_missing, explain_time_limits
from rankscope.diagnosis.verdict import SignOfLife
from rankscope.evidence.model import Evidence

_LONG_SILENCE_S = 60.0
_GATHER = re.compile(r"time.?out.*all.?gather|all.?gather.*time.?out", re.IGNORECASE)


def explain_logs(evidence: Evidence) -> Finding | None:
    """For logs in which no rank's own failure stands: who is pointed to by those that waited."""
    return next((finding for rule in RULES if (finding := rule(evidence)) is not None), None)


def explain_store_barrier(evidence: Evidence) -> Finding | None:
    """Ranks wait for the process group to come about, and say how many have joined it."""
    barrier = log_facts.store_barrier(evidence)
    if barrier is None or barrier.joined == barrier.world:
        return None
    if barrier.joined > barrier.world:
        return Finding(
            outcome="hang",
            cause="rank-missing",
            certainty="possible",
            culprits=(),
            summary=StaleStore(barrier.joined, barrier.world),
            because=(JoinedStore(barrier.joined, barrier.world),),
            fix=(Advice("first-attempt-log"), Advice("own-store")),
            references=("ultralytics/yolov5#4409",),
            next=(Advice("first-traceback"),),
        )
    missing = barrier.world - barrier.joined
    silent = tuple(rank for rank in range(barrier.world) if rank not in barrier.ranks)
    absent = silent if len(silent) == missing else ()
    return Finding(
        outcome="hang",
        cause="rank-missing",
        certainty="likely" if absent else "possible",
        culprits=tuple(culprit(rank, DidNotReach("init_process_group"), evidence) for rank in absent),
        summary=NotAtInit(absent, missing, barrier.world),
        because=(
            JoinedStore(barrier.joined, barrier.world),
            *(last_line(rank, evidence) for rank in absent[:3]),
        ),
        fix=(Advice("count-started-ranks"), Advice("look-before-init")),
        alternatives=(Possibility("blocked-call", "possible", May(absent, "block-before-init"), STACK),),
        references=("Lightning-AI/pytorch-lightning#20391",),
        next=(STACK,),
    )


def explain_master(evidence: Evidence) -> Finding | None:
    """Ranks asked rank 0 for NCCL's id, and did not get it."""
    waiting = log_facts.waited_for_master(evidence)
    if not waiting:
        return None
    known = seen_rank(0, evidence)
    named = known is not None and known.log is not None
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="likely" if named else "possible",
        culprits=(culprit(0, DidNotReach("first collective"), evidence),) if named else (),
        summary=MasterAbsent(waiting),
        because=(MasterHandsOutId(), last_line(0, evidence)),
        fix=(Advice("look-before-first-collective"), Advice("raise-group-timeout")),
        alternatives=(Possibility("slow-rank", "possible", May((0,), "work"), STACK),),
        next=(STACK,),
    )


def explain_dead_peer(evidence: Evidence) -> Finding | None:
    local = log_facts.died_local_rank(evidence)
    if local is None:
        return None
    return Finding(
        outcome="crash",
        cause="killed",
        certainty="possible",
        culprits=(),
        summary=PeerWentAway(local),
        because=(PeerWentAway(local), last_line(local, evidence)),
        fix=(Advice("log-and-kernel"),),
        alternatives=(Possibility("exception", "possible", May((), "failed"), OWN_LOG),),
        references=("modelscope/FunASR#2006",),
        next=(KERNEL,),
    )


def explain_unnamed_exception(evidence: Evidence) -> Finding | None:
    """A traceback on lines of no known rank."""
    log = evidence.log
    if log is None:
        return None
    for error in log.exceptions:
        if error.type.rpartition(".")[2] == "ChildFailedError":
            continue
        known = recognise(f"{error.type}: {error.message}")
        if known is not None and known.role == "victim":
            continue
        return replace(explain_unnamed(error, log.tail, evidence), next=(Advice("prefix-output"),))
    return None


def explain_known_culprit(evidence: Evidence) -> Finding | None:
    """A line of which it is known that who writes it began it."""
    for rank, line in log_facts.all_lines(evidence):
        message = recognise(line.text)
        if message is None or message.role != "culprit" or message.cause is None:
            continue
        wrote = WroteKnown(rank, message.name, line.text.strip()[:200])
        return Finding(
            outcome="hang" if message.cause in ("collective-skipped", "rank-missing") else "crash",
            cause=message.cause,
            certainty="likely" if rank is not None else "possible",
            culprits=(culprit(rank, wrote, evidence),) if rank is not None else (),
            summary=wrote,
            because=(wrote,),
            fix=message.fix,
            references=(message.reference,) if message.reference else (),
            next=(Advice("lines-around"),),
        )
    return None


def explain_only_victims(evidence: Evidence) -> Finding | None:
    """Nothing but words of victims: something happened elsewhere."""
    victims: dict[int | None, str] = {}
    waited = False
    for rank, line in log_facts.all_lines(evidence):
        message = recognise(line.text)
        if message is not None and message.role == "victim":
            victims.setdefault(rank, message.name)
            waited = waited or message.waited
    if not victims:
        return None
    ranks = tuple(sorted(rank for rank in victims if rank is not None))
    gathers = waited and any(_GATHER.search(line.text) for _, line in log_facts.all_lines(evidence))
    return Finding(
        outcome="hang" if waited else "crash",
        cause="comm-error",
        certainty="possible",
        culprits=(),
        summary=OnlySuffered(ranks, next(iter(victims.values()))),
        because=tuple(Suffered(rank, known) for rank, known in list(victims.items())[:5]),
        fix=(
            *((Advice("give-it-more-time"), Advice("without-mixed-precision")) if gathers else ()),
            Advice("all-logs-together"),
        ),
        references=FIRST_GATHER if gathers else (),
        alternatives=(
            Possibility("killed", "possible", May((), "killed"), KERNEL),
            Possibility("exception", "possible", May((), "failed"), OWN_LOG),
        ),
        next=(Advice("who-ended-first"), RERUN),
    )


def explain_silence(evidence: Evidence) -> Finding | None:
    """Nobody complains, but a rank has stopped writing long before the others. That alone blames nobody."""
    signs = [sign for sign in log_facts.signs_of_life(evidence) if sign.silent_s is not None]
    quiet = [sign for sign in signs if _unlike_itself(sign, evidence)]
    if not quiet or len(quiet) == len(signs):
        return None
    ranks = tuple(sorted(sign.rank for sign in quiet if sign.rank is not None))
    return Finding(
        outcome="hang",
        cause="blocked-call",
        certainty="possible",
        culprits=(),
        summary=FellSilent(ranks, max(sign.silent_s or 0.0 for sign in quiet)),
        because=tuple(last_line(rank, evidence) for rank in ranks[:4]),
        fix=(Advice("after-last-line"),),
        alternatives=(
            Possibility("collective-skipped", "possible", May(ranks, "wait"), STACK),
            Possibility("slow-rank", "possible", May(ranks, "work"), STACK),
        ),
        next=(STACK, RERUN),
    )


def _unlike_itself(sign: SignOfLife, evidence: Evidence) -> bool:
    seen = seen_rank(sign.rank, evidence) if sign.rank is not None else None
    log = seen.log if seen is not None else None
    if log is None or log.first_at is None or log.last_at is None or log.lines < 10 or sign.silent_s is None:
        return False
    if seen is not None and seen.exit is not None:
        return False
    rhythm = (log.last_at - log.first_at) / log.lines
    return sign.silent_s >= max(_LONG_SILENCE_S, 20 * rhythm)


RULES: tuple[Callable[[Evidence], Finding | None], ...] = (
    explain_named_missing,
    explain_time_limits,
    explain_store_barrier,
    explain_master,
    explain_dead_peer,
    explain_unnamed_exception,
    explain_known_culprit,
    explain_only_victims,
    explain_silence,
)
"""The one that points to somebody stands before the one that only tells that something is wrong."""
