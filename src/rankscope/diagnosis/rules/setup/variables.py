"""The variables that ranks found each other by, or did not: who has others than the rest, and what a set-up went by."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.setup import FailedSetUp, OtherVariable, SetUpVariables
from rankscope.diagnosis.finding import Finding, Ruling
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import current_where, rank_culprit, where
from rankscope.evidence.model import Evidence, Frame, RankEvidence, Stage
from rankscope.evidence.stages import variables_told

MEETING = ("MASTER_ADDR", "MASTER_PORT")
_SET_UP = frozenset({"process group", "set-up"})
_TOLD = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_",
    "NCCL_",
    "CUDA_",
    "GLOO_",
    "DDP_",
    "TORCH_DISTRIBUTED",
    "TORCH_NCCL",
)
_BY_ARGUMENTS = "by arguments"
"""As the probe notes it of init_process_group."""
_MOST_VARIABLES = 24
_MOST_FRAMES = 6


def explain_odd_variables(evidence: Evidence) -> Finding | None:
    """Ranks that look for the others at another address or port than the rest, and stand or fail in the set-up."""
    for name in MEETING:
        values = {seen.rank: value for seen in evidence.ranks if (value := _variables(seen).get(name)) is not None}
        odd = _odd(name, values, evidence) if _one_world(evidence) and len(values) == evidence.world_size else ()
        stuck = [seen for seen in evidence.ranks if seen.rank in odd and _set_up_stage(seen) is not None]
        if stuck and len(stuck) == len(odd):
            return _finding(name, stuck, values, evidence)
    return None


def _one_world(evidence: Evidence) -> bool:
    """All ranks have come to their set-up, and want to meet all of them: none was told another size, or meets by
    arguments. A rank on its way there may yet set the same variables as the others."""
    size = str(evidence.world_size)
    return len(evidence.ranks) == evidence.world_size and all(
        _variables(seen).get("WORLD_SIZE") == size and _came_to_set_up(seen) and not _meets_by_arguments(seen)
        for seen in evidence.ranks
    )


def _came_to_set_up(seen: RankEvidence) -> bool:
    return seen.progress is not None and any(stage.kind in _SET_UP for stage in seen.progress.stages)


def _meets_by_arguments(seen: RankEvidence) -> bool:
    stages = () if seen.progress is None else seen.progress.stages
    return any(stage.kind == "process group" and _BY_ARGUMENTS in stage.note for stage in stages)


def _odd(name: str, values: dict[int, str], evidence: Evidence) -> tuple[int, ...]:
    """Ranks with another value than most; of two equal halves those that changed it themselves."""
    counts = Counter(values.values()).most_common()
    if len(counts) < 2:
        return ()
    if counts[0][1] > counts[1][1]:
        return tuple(rank for rank, value in values.items() if value != counts[0][0])
    changed = tuple(
        seen.rank
        for seen in evidence.ranks
        if seen.progress is not None and name in variables_told(seen.progress.stages)
    )
    return changed if 0 < len(changed) < len(values) else ()


def _finding(name: str, stuck: list[RankEvidence], values: dict[int, str], evidence: Evidence) -> Finding:
    ranks = tuple(seen.rank for seen in stuck)
    others = next(value for rank, value in values.items() if rank not in ranks)
    facts = {
        value: OtherVariable(tuple(r for r in ranks if values[r] == value), name, value, others)
        for value in dict.fromkeys(values[rank] for rank in ranks)
    }
    failed = any(seen.exit is not None and seen.exit.code != 0 and not seen.exit.by_launcher for seen in evidence.ranks)
    begun = [stage.entered_at for seen in stuck if (stage := _set_up_stage(seen)) is not None]
    return Finding(
        outcome="crash" if failed else "hang",
        cause="address-unreachable",
        certainty="proven",
        culprits=tuple(rank_culprit(seen, facts[values[seen.rank]], _place(seen)) for seen in stuck),
        summary=next(iter(facts.values())),
        because=tuple(facts.values()),
        fix=(Advice("same-variables", name=name), Advice("check-master-address")),
        victims=tuple(rank for rank in values if rank not in ranks),
        began=min(begun),
    )


def with_set_up(ruling: Ruling, evidence: Evidence) -> Ruling:
    """A set-up that failed: the way to where it did, and the variables it went by, of the first culprit."""
    guilty = {culprit.rank for culprit in ruling.culprits}
    for seen in evidence.ranks:
        if ruling.outcome == "crash" and seen.rank in guilty and _failed_stage(seen) is not None:
            frames = next((each.frames for each in reversed(seen.exceptions) if each.frames), ())
            way = FailedSetUp(seen.rank, tuple(_shown(frame) for frame in reversed(frames[:_MOST_FRAMES])))
            told = SetUpVariables(seen.rank, _set_up_variables(seen))
            facts = ((way,) if frames else (), (told,) if told.variables else ())
            return replace(ruling, because=(*ruling.because, *facts[0], *facts[1]))
    return ruling


def _shown(frame: Frame) -> Where:
    found = where(frame)
    assert found is not None
    return found


def _variables(seen: RankEvidence) -> dict[str, str]:
    """As it was started with, and as it changed them."""
    told = variables_told(seen.progress.stages) if seen.progress is not None else {}
    return {**seen.environment, **told}


def _set_up_variables(seen: RankEvidence) -> tuple[tuple[str, str], ...]:
    chosen = [(name, value) for name, value in sorted(_variables(seen).items()) if name.startswith(_TOLD)]
    return tuple(chosen[:_MOST_VARIABLES])


def _set_up_stage(seen: RankEvidence) -> Stage | None:
    """The set-up that the rank is in, or that failed; None where it passed one or never came there."""
    stages = [] if seen.progress is None else [stage for stage in seen.progress.stages if stage.kind in _SET_UP]
    if any(stage.number for stage in stages):
        return None
    return stages[0] if stages else None


def _failed_stage(seen: RankEvidence) -> Stage | None:
    stages = () if seen.progress is None else seen.progress.stages
    return next((stage for stage in stages if stage.kind in _SET_UP and stage.failed), None)


def _place(seen: RankEvidence) -> Where | None:
    stage = _set_up_stage(seen)
    return where(stage.site[0]) if stage is not None and stage.site else current_where(seen)
