"""What filled a GPU whose memory ran out: torch's message, the rank's own stages, what it held at the end."""

from __future__ import annotations

from posixpath import basename

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.memory import GpuFilled, GpuGrew, GpuShared, HeldAt, LiveTensors
from rankscope.evidence.cuda_memory import ToldMemory, told_memory
from rankscope.evidence.model import Evidence, RaisedException, RankEvidence

_LEAST_STEPS = 5
_GROWN_SHARE = 0.2
"""Of what was allocated at the end: less is no leak that filled a GPU."""
_SHARED_SHARE = 0.1
_IDLE_SHARE = 0.2


def what_filled_it(rank: RankEvidence, error: RaisedException, evidence: Evidence) -> tuple[Fact, ...]:
    told = told_memory(error.message)
    facts: list[Fact] = []
    if told is not None:
        facts.append(
            GpuFilled(
                rank.rank, told.device, told.asked, told.total, told.free, told.allocated, told.idle, told.allowed
            )
        )
        shared = _shared(rank, told, evidence)
        facts += [shared] if shared is not None else []
    grew = _grew(rank, told)
    facts += [grew] if grew is not None else []
    held = rank.progress.held if rank.progress is not None else None
    if held is not None and held.tensors:
        kinds = tuple((each.count, each.kind, each.bytes) for each in held.tensors)
        facts.append(LiveTensors(rank.rank, kinds, held.in_python, held.allocated))
    if held is not None and held.lines:
        facts.append(HeldAt(rank.rank, tuple((f"{basename(file)}:{line}", size) for file, line, size in held.lines)))
    return tuple(facts)


def advice_for(facts: tuple[Fact, ...]) -> tuple[Advice, ...]:
    """What these facts ask for before anything else."""
    advice = [Advice("keep-no-graphs")] if any(isinstance(fact, GpuGrew) for fact in facts) else []
    if any(isinstance(fact, GpuFilled) and fact.idle > _IDLE_SHARE * fact.total for fact in facts):
        advice.append(Advice("use-expandable-segments"))
    return tuple(advice)


def _shared(rank: RankEvidence, told: ToldMemory, evidence: Evidence) -> GpuShared | None:
    others = [(pid, size) for pid, size in told.others if pid != rank.pid]
    held = sum(size for _, size in others)
    if not told.total or held < _SHARED_SHARE * told.total:
        return None
    ours = {seen.pid: seen.rank for seen in evidence.ranks if seen.host == rank.host}
    pids = tuple(pid for pid, _ in others)
    return GpuShared(held, pids, tuple(sorted(ours[pid] for pid in pids if pid in ours)))


def _grew(rank: RankEvidence, told: ToldMemory | None) -> GpuGrew | None:
    """Since the first step, whose memory its stage tells: what every step needs again was there by then."""
    progress = rank.progress
    if progress is None or progress.steps <= _LEAST_STEPS:
        return None
    first = next((stage.gpu_after for stage in progress.stages if stage.kind == "first step" and stage.gpu_after), 0)
    now = progress.held.allocated if progress.held is not None else told.allocated if told is not None else 0
    if not first or now - first < _GROWN_SHARE * now:
        return None
    steps = progress.steps - 1
    return GpuGrew(rank.rank, (now - first) // steps, steps, first)
