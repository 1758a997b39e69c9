"""Causes told by logs alone: whom the messages of the waiting ranks point to, and who fell silent."""

from __future__ import annotations

from collections import Counter

from rankscope.diagnosis import views
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules import log_facts as facts
from rankscope.diagnosis.rules.exceptions import explain_exception
from rankscope.diagnosis.rules.messages import recognise
from rankscope.diagnosis.verdict import Alternative, Culprit, SignOfLife
from rankscope.evidence.model import Evidence, RankEvidence

_STACK = "while it hangs: `rankscope attach` on the host of that rank, or `py-spy dump --pid PID`"
_DUMP = (
    "let torch write flight-recorder dumps (TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1) and give them to "
    "rankscope diagnose: they name the call and the line"
)
_RERUN = "start the job with `rankscope run`: it sees what the silent rank does"
_KERNEL = "look at the kernel's log of that host: `dmesg -T | grep -i -E 'killed process|out of memory|xid'`"
_MATCH_FIX = (
    "make all ranks call the same collective with the same shape and dtype at this place",
    "pad or gather sizes first where the data differs from rank to rank",
)
_SKIP_FIX = (
    "make every rank reach the same collectives in the same order: look for a condition on the rank or on the data",
    "where one rank works longer (saving, evaluating, preparing data), raise the timeout of the process group",
)
_LONG_SILENCE_S = 60.0


def explain_mismatch(evidence: Evidence) -> Finding | None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL compares the calls before they are made, and prints both."""
    texts = [line.text for _, line in facts.all_lines(evidence)]
    texts += [error.message for seen in evidence.ranks for error in seen.exceptions]
    found = facts.fingerprints(texts)
    counts = Counter(each.signature() for each in found)
    if len(counts) < 2:
        return None
    usual = counts.most_common(1)[0]
    # One against one: both are parties to it.
    tied = list(counts.values()).count(usual[1]) > 1
    guilty = found if tied else tuple(each for each in found if each.signature() != usual[0])
    ops = {each.op for each in found}
    parts = tuple(f"rank {each.rank} runs {each.words()}" for each in found)
    return Finding(
        outcome="crash",
        cause="collective-mismatch",
        certainty="proven" if not tied else "likely",
        culprits=tuple(_culprit(each.rank, f"runs {each.words()}", evidence) for each in guilty),
        summary=f"the ranks call different collectives: {'; '.join(parts[:4])}",
        because=(*parts[:6], "torch compared the calls before they were made"),
        fix=_MATCH_FIX,
        alternatives=(
            Alternative(
                "collective-skipped",
                "possible",
                "one side may have left out a call before" if len(ops) > 1 else "a rank may be one call ahead",
                _DUMP,
            ),
        ),
        references=("modelscope/ms-swift#9443",),
        next=() if not tied else (_DUMP,),
    )


def explain_logs(evidence: Evidence) -> Finding | None:
    """For logs in which no rank's own failure stands: who is pointed to by those that waited."""
    return (
        _named_missing(evidence)
        or _watchdogs(evidence)
        or _store_barrier(evidence)
        or _master(evidence)
        or _dead_peer(evidence)
        or _told_by_nobody(evidence)
        or _only_waiting(evidence)
        or _silent(evidence)
    )


def _seen(rank: int, evidence: Evidence) -> RankEvidence | None:
    return next((seen for seen in evidence.ranks if seen.rank == rank), None)


def _culprit(rank: int, doing: str, evidence: Evidence) -> Culprit:
    seen = _seen(rank, evidence)
    if seen is None:
        return Culprit(rank, None, None, "rank", None, doing)
    frames = next((error.frames for error in reversed(seen.exceptions) if error.frames), ())
    return views.rank_culprit(seen, doing, views.where(views.innermost_user_frame(frames)))


def _last_words(rank: int, evidence: Evidence) -> str:
    sign = next((sign for sign in facts.signs_of_life(evidence) if sign.rank == rank), None)
    if sign is None:
        return f"no line of rank {rank} is in the logs"
    silent = f", silent for {_span(sign.silent_s)}" if sign.silent_s is not None and sign.silent_s >= 1 else ""
    return f"the last line of rank {rank} is {sign.line[:100]!r}{silent}"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _absent_finding(
    absent: tuple[int, ...],
    waiting: tuple[int, ...],
    what: str,
    because: tuple[str, ...],
    evidence: Evidence,
    named: bool,
) -> Finding:
    """Others waited in a collective for ranks that did not come; what kept those is not in the logs."""
    text = views.ranks_text(absent)
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="likely" if named else "possible",
        culprits=tuple(_culprit(rank, f"did not come to {what}", evidence) for rank in absent) if named else (),
        summary=f"{views.ranks_text(waiting)} waited in {what} until the time was over; {text} did not come to it",
        because=(*because, *(_last_words(rank, evidence) for rank in absent[:3])),
        fix=_SKIP_FIX,
        alternatives=(
            Alternative("slow-rank", "possible", f"{text} may have been at work longer than the time limit", _STACK),
            Alternative("blocked-call", "possible", f"{text} may stand in a call that does not return", _STACK),
            Alternative("killed", "possible", f"{text} may have been killed without a word", _KERNEL),
        ),
        references=("pytorch/pytorch#54059",),
        next=(_DUMP, _RERUN),
    )


def _named_missing(evidence: Evidence) -> Finding | None:
    missing = facts.named_missing(evidence)
    if not missing:
        return None
    waiting = tuple(seen.rank for seen in evidence.ranks if seen.rank not in missing)
    because = (f"the monitored barrier names {views.ranks_text(missing)} as not arrived",)
    # A monitored barrier asks rank after rank and may stop at the first that does not answer.
    return _absent_finding(missing, waiting or (0,), "a monitored barrier", because, evidence, named=True)


def _watchdogs(evidence: Evidence) -> Finding | None:
    """Ranks whose time was over in a collective: those that were elsewhere, or further back, kept them waiting."""
    timed = facts.timed_out(evidence)
    numbered = {rank: each for rank, each in timed.items() if each.seq is not None}
    if len(numbered) >= 2:
        finding = _different_operations(numbered, evidence) or _laggards(numbered, evidence)
        if finding is not None:
            return finding
    if not timed:
        return None
    everybody = {seen.rank for seen in evidence.ranks if seen.log is not None} | set(range(evidence.world_size))
    absent = tuple(sorted(everybody - set(timed)))
    known = {seen.rank for seen in evidence.ranks if seen.log is not None and seen.log.lines}
    first = min(timed.values(), key=lambda each: (each.line.at or 0.0, each.line.order))
    what = _what(first)
    if not absent:
        return None
    named = set(absent) <= known and 2 * len(absent) < len(everybody)
    because = (
        f"{views.ranks_text(timed)} ran into the time limit of {what}",
        f"{views.ranks_text(absent)} {'tells' if len(absent) == 1 else 'tell'} of no time limit",
    )
    return _absent_finding(absent, tuple(sorted(timed)), what, because, evidence, named)


def _what(timed: facts.TimedOut) -> str:
    if timed.seq is None:
        return "a collective"
    if timed.op == "ALLREDUCE" and timed.numel == 1:
        return f"ALLREDUCE {timed.seq} of one element (usually a barrier)"
    return f"{timed.op} {timed.seq}"


def _different_operations(numbered: dict[int, facts.TimedOut], evidence: Evidence) -> Finding | None:
    """At one place of the sequence some wait in one operation and some in another."""
    by_seq: dict[int, dict[tuple[str, int | None], list[int]]] = {}
    for rank, each in numbered.items():
        if each.seq is not None:
            by_seq.setdefault(each.seq, {}).setdefault((each.op, each.numel), []).append(rank)
    for seq, sides in sorted(by_seq.items()):
        if len(sides) < 2 or len({op for op, _ in sides}) < 2:
            continue
        ordered = sorted(sides.items(), key=lambda side: len(side[1]))
        (op, numel), guilty = ordered[0]
        tied = len(ordered[0][1]) == len(ordered[-1][1])
        parts = [f"{views.ranks_text(ranks)} waited in {name} of {size} elements" for (name, size), ranks in ordered]
        return Finding(
            outcome="hang",
            cause="collective-mismatch",
            certainty="likely",
            culprits=()
            if tied
            else tuple(_culprit(r, f"waited in {op} of {numel} elements", evidence) for r in guilty),
            summary=f"at collective {seq} the ranks made different calls: {'; '.join(parts)}",
            because=(*parts, "operations that differ at one place of the sequence never match"),
            fix=_MATCH_FIX,
            alternatives=(
                Alternative("collective-skipped", "likely", "a call before may be missing on one side", _DUMP),
            ),
            references=("pytorch/pytorch#68803",),
            next=(_DUMP,),
        )
    return None


def _laggards(numbered: dict[int, facts.TimedOut], evidence: Evidence) -> Finding | None:
    """The rank that had entered the fewest collectives is the one the others waited for."""
    entered = facts.enqueued_counts(evidence) or {rank: each.seq or 0 for rank, each in numbered.items()}
    if len(entered) < 2:
        return None
    least, most = min(entered.values()), max(entered.values())
    behind = tuple(sorted(rank for rank, count in entered.items() if count == least))
    waited = [each for rank, each in numbered.items() if rank not in behind and each.seq is not None]
    if least == most or not waited or 2 * len(behind) >= len(entered):
        return None
    first = min(waited, key=lambda each: each.seq or 0)
    if first.seq is None or least >= first.seq:
        return None
    because = (
        f"{views.ranks_text([each.rank for each in waited])} had entered collective {first.seq} and waited in it",
        f"{views.ranks_text(behind)} had entered {least} only",
    )
    waiting = tuple(sorted(each.rank for each in waited))
    return _absent_finding(behind, waiting, _what(first), because, evidence, named=True)


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
        culprits=tuple(_culprit(rank, "did not reach init_process_group", evidence) for rank in absent)
        if named
        else (),
        summary=f"{text} did not reach init_process_group; the others wait there",
        because=(
            f"{barrier.joined} of {barrier.world} ranks have joined",
            *(_last_words(rank, evidence) for rank in absent[:3] if named),
        ),
        fix=(
            "see whether that many ranks were started: --nproc-per-node times --nnodes, or ntasks",
            "see what the missing ranks do before init_process_group: downloads, loggers, locks",
        ),
        alternatives=(
            Alternative("blocked-call", "possible", "a missing rank may stand in a call before init", _STACK),
        ),
        references=("Lightning-AI/pytorch-lightning#20391",),
        next=(_STACK,),
    )


def _master(evidence: Evidence) -> Finding | None:
    waiting = facts.waited_for_master(evidence)
    if not waiting:
        return None
    known = _seen(0, evidence)
    named = known is not None and known.log is not None
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="likely" if named else "possible",
        culprits=(_culprit(0, "did not reach the first collective", evidence),) if named else (),
        summary=f"rank 0 did not reach the first collective, for which {views.ranks_text(waiting)} waited",
        because=(
            "rank 0 hands out NCCL's id at its first collective; the others asked for it in vain",
            _last_words(0, evidence),
        ),
        fix=(
            "see what rank 0 does before its first collective: downloads, preparing data, loggers",
            "raise the timeout of the process group above the time that this takes",
        ),
        alternatives=(Alternative("slow-rank", "possible", "rank 0 may still be at work", _STACK),),
        next=(_STACK,),
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
        because=(f"'Connection closed by localRank {local}' names it", _last_words(local, evidence)),
        fix=("look at the log of that rank for an exception, and at the kernel's for a kill",),
        alternatives=(
            Alternative("exception", "possible", "an exception may have ended it", "read the end of its log"),
        ),
        references=("modelscope/FunASR#2006",),
        next=(_KERNEL,),
    )


def _told_by_nobody(evidence: Evidence) -> Finding | None:
    """Lines of no known rank that tell a cause: a traceback without a prefix, a known message of a culprit."""
    log = evidence.log
    if log is None:
        return None
    own = [error for error in log.exceptions if error.type.rpartition(".")[2] != "ChildFailedError"]
    fake = RankEvidence(rank=0, local_rank=0, host="", pid=0, started_at=evidence.started_at, error_tail=log.tail)
    for error in own:
        known = recognise(f"{error.type}: {error.message}")
        if known is not None and known.role == "victim":
            continue
        finding = explain_exception(fake, error, evidence)
        at = views.where(views.innermost_user_frame(error.frames))
        kind = error.type.rpartition(".")[2]
        message = error.message.partition("\n")[0][:160]
        return Finding(
            outcome="crash",
            cause=finding.cause,
            certainty="likely",
            culprits=(Culprit(None, None, None, "rank", at, f"raised {kind}"),),
            summary=f"a rank that the log does not name raised {kind}"
            + (f" in {views.place(at)}" if at is not None else "")
            + (f": {message}" if message else ""),
            because=tuple(reason.replace("rank 0", "a rank") for reason in finding.because),
            fix=finding.fix,
            alternatives=finding.alternatives,
            references=finding.references,
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
            culprits=(_culprit(rank, message.meaning, evidence),) if rank is not None else (),
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
            Alternative("killed", "possible", "another rank may have been killed", _KERNEL),
            Alternative("exception", "possible", "another rank may have failed", "read the end of its log"),
        ),
        next=("collect the logs of all ranks; the one that ended first without such a message began it", _RERUN),
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
        summary=f"{views.ranks_text(ranks)} fell silent {_span(longest)} before the logs end; no message says why",
        because=tuple(_last_words(rank, evidence) for rank in ranks[:4]),
        fix=("look at what comes after that last line in the program",),
        alternatives=(
            Alternative(
                "collective-skipped", "possible", "it may wait in a collective that others do not join", _STACK
            ),
            Alternative("slow-rank", "possible", "it may be at work without a word", _STACK),
        ),
        next=(_STACK, _RERUN),
    )


def _unlike_itself(sign: SignOfLife, evidence: Evidence) -> bool:
    seen = _seen(sign.rank, evidence) if sign.rank is not None else None
    log = seen.log if seen is not None else None
    if log is None or log.first_at is None or log.last_at is None or log.lines < 10 or sign.silent_s is None:
        return False
    if seen is not None and seen.exit is not None:
        return False
    rhythm = (log.last_at - log.first_at) / log.lines
    return sign.silent_s >= max(_LONG_SILENCE_S, 20 * rhythm)
