"""A rank that ended well, and had left out a call on its way: its sequence is that of a waiting rank less one call."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.code import CodeReader
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.waits import WaitGraph
from rankscope.evidence.model import Call, Evidence, RankEvidence

_LEAST_AFTER = 2
"""So many calls made alike after the one left out show that the rank went on as before."""
_MOST_LEFT_OUT = 8
_FIX = (
    "make every rank reach the same collectives in the same order: move the call out of the branch, "
    "or take the branch on all ranks",
    "decide from what all ranks share: all_reduce the flag before the branch",
)


def explain_passed_call(left: RankEvidence, evidence: Evidence, graph: WaitGraph) -> Finding | None:
    """None where the calls of the ended rank are simply fewer at the end: then it left early."""
    for number in graph.waiters_of(left.rank):
        waiter = graph.states[number].seen
        missed = _missed(left, waiter) if waiter is not None else None
        if waiter is not None and missed is not None:
            return _explain(left, waiter, missed, evidence)
    return None


def _missed(left: RankEvidence, waiter: RankEvidence) -> tuple[Call, int] | None:
    """The first call that the ended rank left out, and how often the waiter had made it by then."""
    mine, theirs = _collectives(left), _collectives(waiter)
    if mine is None or theirs is None or not theirs:
        return None
    keys, their_keys = [_key(call) for call in mine], [_key(call) for call in theirs]
    parted = next((at for at, (a, b) in enumerate(zip(keys, their_keys, strict=False)) if a != b), None)
    if parted is None:
        return None
    for count in range(1, _MOST_LEFT_OUT + 1):
        after = their_keys[parted + count :]
        if len(after) >= _LEAST_AFTER and keys[parted : parted + len(after)] == after:
            call = theirs[parted]
            awaited = theirs[-1]
            return (call, their_keys[: parted + 1].count(_key(call))) if call.group == awaited.group else None
    return None


def _collectives(rank: RankEvidence) -> tuple[Call, ...] | None:
    """None where the record does not reach back to the start."""
    calls = rank.progress.calls if rank.progress is not None else ()
    if not calls or calls[0].index != 0:
        return None
    return tuple(call for call in calls if call.depth == 0 and call.group and call.seq > 0)


def _key(call: Call) -> object:
    # Not the group: ranks of one program use groups of different names at the same place.
    return call.op, tuple((frame.file, frame.line) for frame in call.site[:3])


def _explain(left: RankEvidence, waiter: RankEvidence, missed: tuple[Call, int], evidence: Evidence) -> Finding:
    call, times = missed
    at = views.where(call.site[0]) if call.site else None
    found = CodeReader(evidence).way_past(call.site)
    reasons: tuple[str, ...] = ()
    culprit_at = at
    if found is not None:
        frame, branch = found
        name = frame.file.rsplit("/", 1)[-1]
        culprit_at = Where(file=frame.file, line=branch.line, function=frame.function)
        reasons = (f"`{branch.quote}` ({name}:{branch.line}) leads past {name}:{frame.line}",)
    failed = any(seen.exit is not None and seen.exit.code for seen in evidence.ranks)
    return Finding(
        outcome="crash" if failed else "hang",
        cause="collective-skipped",
        certainty="likely",
        culprits=(views.rank_culprit(left, f"left out one {call.op}, went on and ended with code 0", culprit_at),),
        summary=f"rank {left.rank} passed by the {call.op} at {views.place(at)} in iteration {times} and went on; "
        f"so it ended while rank {waiter.rank} waited for one more",
        because=(
            f"the calls of rank {left.rank} are those of rank {waiter.rank} without this one: "
            f"{call.op} {call.seq} of its group",
            *reasons,
            f"rank {left.rank} then ended with code 0; the launcher had not stopped it",
        ),
        fix=_FIX,
        alternatives=(Possibility("rank-left", "possible", "it ended while others still needed it"),),
    )
