"""Replicas that must hold the same parameters and no longer do."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.numbers import (
    DifferedAgain,
    FewerSteps,
    HoldsOtherCopy,
    LoadedAlone,
    ReplicasDiffer,
    RewroteAlone,
    SumDiffers,
)
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import innermost_user_frame, rank_culprit, where
from rankscope.evidence.model import Checksum, Evidence, Frame, Progress, RankEvidence, Stage

_TOLERANCE = 1e-5
"""Replicas get the same gradients and make the same steps: they are equal bit by bit. Sums of them nearly are."""
_LEAST_DIFFERENCES = 2
_MOST_SUMS_TOLD = 8
_REWRITES = frozenset({"load_state_dict", "learning_rate"})
"""As the probe notes them among the calls."""

_FIX = (Advice("skip-steps-together"), Advice("load-everywhere"), Advice("look-for-other-writers"))
_REFERENCES = ("pytorch/pytorch#128949", "facebookresearch/detectron2#1732")

Sums = dict[int, float]
"""Rank → the checksum of one parameter at one step."""


def explain_diverged(evidence: Evidence) -> Finding | None:
    """None where the replicas agree, or too little of them is known."""
    written = {seen.rank: seen.progress for seen in evidence.ranks if seen.progress is not None}
    differing = _differing(written)
    if len(differing) < _LEAST_DIFFERENCES:
        return None
    first, sums = differing[0]
    rewritten = _rewritten(first, sums, written)
    loaded = {rank: alone for rank in sums if (alone := _loaded_alone(rank, written)) is not None}
    odd = _minority(sums)  # of the first difference: what differs later may be a consequence
    if not odd and len(loaded) == 1:
        odd = tuple(loaded)
    seen = {rank.rank: rank for rank in evidence.ranks}
    because: list[Fact] = [
        SumDiffers(first.name, first.step, tuple(sorted(sums.items())[:_MOST_SUMS_TOLD])),
        DifferedAgain(len(differing), differing[-1][0].step),
    ]
    behind = _behind(_steps(evidence))
    if behind:
        because.append(FewerSteps(behind))
    because += [alone for rank, alone in loaded.items() if rank in odd]
    place = None if rewritten is None else rewritten.where
    if rewritten is not None:
        because.append(rewritten)
    return Finding(
        outcome="corrupt",
        cause="parameters-diverged",
        certainty="proven" if not odd else "likely",
        culprits=tuple(
            rank_culprit(seen[rank], HoldsOtherCopy(rank), _place(loaded.get(rank)) or place) for rank in odd
        ),
        summary=ReplicasDiffer(
            odd, tuple(sorted(sums)), first.step, (_place(loaded.get(odd[0])) or place) if len(odd) == 1 else None
        ),
        because=tuple(because),
        fix=_FIX,
        references=_REFERENCES,
        victims=tuple(sorted(rank for rank in sums if rank not in odd)) if odd else (),
        since=evidence.collected_at,
    )


def _rewritten(first: Checksum, sums: Sums, written: Mapping[int, Progress]) -> RewroteAlone | None:
    """The last thing that only some of them did to the model, or to how it is trained, before their copies differed;
    while they were equal it had done no harm."""
    odd = _minority(sums)
    equal = [checksum.step for checksum, known in _comparable(written) if not _differ(known)]
    since = max((step for step in equal if step < first.step), default=0)
    done: dict[tuple[str, str, int, tuple[Frame, ...]], list[int]] = {}
    for rank in sums:
        for call in written[rank].calls:
            if call.op in _REWRITES and since <= call.step <= first.step:
                done.setdefault((call.op, call.note, call.step, call.site), []).append(rank)
    for (op, note, step, site), ranks in sorted(done.items(), key=lambda each: -each[0][2]):
        some, rest = tuple(sorted(set(ranks))), tuple(sorted(set(sums) - set(ranks)))
        if rest and (not odd or odd in (some, rest)):
            return RewroteAlone(some, rest, op, note, step, where(innermost_user_frame(site)))
    return None


def _place(loaded: LoadedAlone | None) -> Where | None:
    return None if loaded is None else loaded.where


def _loaded_alone(rank: int, written: Mapping[int, Progress]) -> LoadedAlone | None:
    """Where this rank, and none of those it is compared with, loaded a checkpoint: that
    writes parameters behind the back of what keeps them equal."""
    others = {place for other, progress in written.items() if other != rank for place in _loads(progress)}
    own = _loads(written[rank])
    alone = [place for place in own if place not in others]
    return LoadedAlone(rank, alone[0], own[alone[0]]) if alone else None


def _loads(progress: Progress) -> dict[Where, int]:
    """Places that loaded a checkpoint, the first first, and how often."""
    found: dict[Where, int] = {}
    for stage in progress.stages:
        at = where(innermost_user_frame(stage.site)) if _loads_checkpoint(stage) else None
        if at is not None:
            found[at] = found.get(at, 0) + 1
    return found


def _loads_checkpoint(stage: Stage) -> bool:
    return stage.kind == "load" and not stage.failed


def differ(written: Mapping[int, Progress]) -> bool:
    """Whether what the ranks wrote down of their parameters shows a difference that counts."""
    return len(_differing(written)) >= _LEAST_DIFFERENCES


def _differing(written: Mapping[int, Progress]) -> list[tuple[Checksum, Sums]]:
    return [(checksum, sums) for checksum, sums in _comparable(written) if _differ(sums)]


def _comparable(written: Mapping[int, Progress]) -> list[tuple[Checksum, Sums]]:
    """What every member of a group wrote down of the same parameter at the same step, oldest first."""
    found: dict[tuple[int, str, str], tuple[Checksum, Sums]] = {}
    members: dict[str, tuple[int, ...]] = {}
    bad: set[tuple[int, str, str]] = set()
    for rank, progress in written.items():
        members.update((group.name, group.ranks) for group in progress.groups)
        for checksum in progress.checksums:
            key = (checksum.step, checksum.group, checksum.name)
            if checksum.value is None or not math.isfinite(checksum.value):
                bad.add(key)
            else:
                found.setdefault(key, (checksum, {}))[1][rank] = checksum.value
    return [
        (checksum, sums)
        for key, (checksum, sums) in sorted(found.items())
        if key not in bad and len(sums) > 1 and set(sums) == set(members.get(checksum.group, sums))
    ]


def _differ(sums: Mapping[int, float]) -> bool:
    values = list(sums.values())
    return any(not _alike(value, values[0]) for value in values)


def _alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-9)


def _minority(sums: Mapping[int, float]) -> tuple[int, ...]:
    """The ranks that stand against more than half of the others; none where there is no such side."""
    for value in sums.values():
        same = [rank for rank, other in sums.items() if _alike(value, other)]
        if 2 * len(same) > len(sums):
            return tuple(sorted(set(sums) - set(same)))
    return ()


def _steps(evidence: Evidence) -> dict[int, int]:
    return {seen.rank: seen.progress.steps for seen in evidence.ranks if _counts(seen) and seen.progress is not None}


def _counts(seen: RankEvidence) -> bool:
    """Of a rank that runs, the number may be one behind for a moment."""
    return seen.progress is not None and seen.exit is not None


def _behind(steps: Mapping[int, int]) -> tuple[int, ...]:
    if not steps or len(set(steps.values())) == 1:
        return ()
    most = max(steps.values())
    behind = tuple(sorted(rank for rank, made in steps.items() if made < most))
    return behind if 2 * len(behind) < len(steps) else ()
