"""Causes told by logs alone: whom the messages of the waiting ranks point to, and who fell silent."""

from __future__ import annotations

from dataclasses import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.crashes.exceptions import explain_unnamed
from rankscope.diagnosis.rules.crashes.known_errors import recognise
from rankscope.diagnosis.rules.offline import log_facts as facts
from rankscope.diagnosis.rules.offline.log_waits import explain_named_missing, explain_time_limits
from rankscope.diagnosis.rules.offline.log_words import (
    KERNEL,
    RERUN,
    STACK,
    culprit,
    last_words,
    seen_rank,
    span,
)
from rankscope.diagnosis.verdict import SignOfLife
from rankscope.evidence.model import Evidence

_LONG_SILENCE_S = 60.0


def explain_logs(evidence: Evidence) -> Finding | None:
    """For logs in which no rank's own failure stands: who is pointed to by those that waited."""
    return (
        explain_named_missing(evidence)
        or explain_time_limits(evidence)
        or _store_barrier(evidence)
        or _master(evidence)
        or _dead_peer(evidence)
        or _told_by_nobody(evidence)
        or _only_waiting(evidence)
        or _silent(evidence)
    )


def _store_barrier(evidence: Evidence) -> Finding | None:
    barrier = facts.store_barrier(evidence)
    if barrier is None or barrier.joined == barrier.world:
        return None
    if barrier.joined > barrier.world:
        return Finding(
            outcome="hang",
            cause="rank-missing",
            certainty="possible",
            culprits=(),
            summary=f"{barrier.joined} processes have joined a process group of {barrier.world}: the store "
            "still counts those of an earlier attempt",
            because=(f"worker_count={barrier.joined} is more than world_size={barrier.world}",),
            fix=("look at why the first attempt failed: its log stands above", "give each attempt a store of its own"),
            references=("ultralytics/yolov5#4409",),
            next=("find the first traceback of the first attempt",),
        )
    absent = tuple(rank for rank in range(barrier.world) if rank not in barrier.ranks)
    named = len(absent) == barrier.world - barrier.joined
    text = views.ranks_text(absent) if named else f"{barrier.world - barrier.joined} of {barrier.world} ranks"
    return Finding(
        outcome="hang",
        cause="rank-missing",
        certainty="likely" if named else "possible",
        culprits=tuple(culprit(rank, "did not reach init_process_group", evidence) for rank in absent) if named else (),
        summary=f"{text} did not reach init_process_group; the others wait there",
        because=(
            f"{barrier.joined} of {barrier.world} ranks have joined",
            *(last_words(rank, evidence) for rank in absent[:3] if named),
        ),
        fix=(
            "see whether that many ranks were started: --nproc-per-node times --nnodes, or ntasks",
            "see what the missing ranks do before init_process_group: downloads, loggers, locks",
        ),
        alternatives=(
            Possibility("blocked-call", "possible", "a missing rank may stand in a call before init", STACK),
        ),
        references=("Lightning-AI/pytorch-lightning#20391",),
        next=(STACK,),
    )


def _master(evidence: Evidence) -> Finding | None:
    waiting = facts.waited_for_master(evidence)
    if not waiting:
        return None
    known = seen_rank(0, evidence)
    named = known is not None and known.log is not None
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="likely" if named else "possible",
        culprits=(culprit(0, "did not reach the first collective", evidence),) if named else (),
        summary=f"rank 0 did not reach the first collective, for which {views.ranks_text(waiting)} waited",
        because=(
            "rank 0 hands out NCCL's id at its first collective; the others asked for it in vain",
            last_words(0, evidence),
        ),
        fix=(
            "see what rank 0 does before its first collective: downloads, preparing data, loggers",
            "raise the timeout of the process group above the time that this takes",
        ),
        alternatives=(Possibility("slow-rank", "possible", "rank 0 may still be at work", STACK),),
        next=(STACK,),
    )


def _dead_peer(evidence: Evidence) -> Finding | None:
    local = facts.died_local_rank(evidence)
    if local is None:
        return None
    return Finding(
        outcome="crash",
        cause="killed",
        certainty="possible",
        culprits=(),
        summary=f"the process with local rank {local} went away; NCCL noticed its closed connection",
        because=(f"'Connection closed by localRank {local}' names it", last_words(local, evidence)),
        fix=("look at the log of that rank for an exception, and at the kernel's for a kill",),
        alternatives=(
            Possibility("exception", "possible", "an exception may have ended it", "read the end of its log"),
        ),
        references=("modelscope/FunASR#2006",),
        next=(KERNEL,),
    )


def _told_by_nobody(evidence: Evidence) -> Finding | None:
    """Lines of no known rank that tell a cause: a traceback without a prefix, a known message of a culprit."""
    log = evidence.log
    if log is None:
        return None
    own = [error for error in log.exceptions if error.type.rpartition(".")[2] != "ChildFailedError"]
    for error in own:
        known = recognise(f"{error.type}: {error.message}")
        if known is not None and known.role == "victim":
            continue
        return replace(
            explain_unnamed(error, log.tail, evidence),
            next=("start with prefixed output (torchrun --tee 3, srun -l, or rankscope run) to know the rank",),
        )
    return _known_culprit(evidence)


def _known_culprit(evidence: Evidence) -> Finding | None:
    for rank, line in facts.all_lines(evidence):
        message = recognise(line.text)
        if message is None or message.role != "culprit" or message.cause is None:
            continue
        who = f"rank {rank}" if rank is not None else "a rank that the log does not name"
        return Finding(
            outcome="hang" if message.cause in ("collective-skipped", "rank-missing") else "crash",
            cause=message.cause,
            certainty="likely" if rank is not None else "possible",
            culprits=(culprit(rank, message.meaning, evidence),) if rank is not None else (),
            summary=f"{who} tells that {message.meaning}",
            because=(f"{who} wrote: {line.text.strip()[:200]}",),
            fix=message.fix,
            references=(message.reference,) if message.reference else (),
            next=("read the lines around that message",),
        )
    return None


def _only_waiting(evidence: Evidence) -> Finding | None:
    """Nothing but words of victims: something happened elsewhere."""
    victims: dict[int | None, str] = {}
    for rank, line in facts.all_lines(evidence):
        message = recognise(line.text)
        if message is not None and message.role == "victim":
            victims.setdefault(rank, message.meaning)
    if not victims:
        return None
    ranks = tuple(sorted(rank for rank in victims if rank is not None))
    who = views.ranks_text(ranks) if ranks else "the ranks in these logs"
    waited = any("waited" in meaning for meaning in victims.values())
    return Finding(
        outcome="hang" if waited else "crash",
        cause="comm-error",
        certainty="possible",
        culprits=(),
        summary=f"{who} only suffered ({next(iter(victims.values()))}); who began it is not in these logs",
        because=tuple(
            f"{views.ranks_text([r]) if r is not None else 'a rank'}: {text}" for r, text in list(victims.items())[:5]
        ),
        fix=("get the logs of the other ranks and hosts, and give all of them to rankscope diagnose together",),
        alternatives=(
            Possibility("killed", "possible", "another rank may have been killed", KERNEL),
            Possibility("exception", "possible", "another rank may have failed", "read the end of its log"),
        ),
        next=("collect the logs of all ranks; the one that ended first without such a message began it", RERUN),
    )


def _silent(evidence: Evidence) -> Finding | None:
    """Nobody complains, but a rank has stopped writing long before the others. That alone blames nobody."""
    signs = [sign for sign in facts.signs_of_life(evidence) if sign.silent_s is not None]
    quiet = [sign for sign in signs if _unlike_itself(sign, evidence)]
    if not quiet or len(quiet) == len(signs):
        return None
    ranks = [sign.rank for sign in quiet if sign.rank is not None]
    longest = max(sign.silent_s or 0.0 for sign in quiet)
    return Finding(
        outcome="hang",
        cause="blocked-call",
        certainty="possible",
        culprits=(),
        summary=f"{views.ranks_text(ranks)} fell silent {span(longest)} before the logs end; no message says why",
        because=tuple(last_words(rank, evidence) for rank in ranks[:4]),
        fix=("look at what comes after that last line in the program",),
        alternatives=(
            Possibility("collective-skipped", "possible", "it may wait in a collective that others do not join", STACK),
            Possibility("slow-rank", "possible", "it may be at work without a word", STACK),
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
