"""What a rank does instead of joining the others: the common form of all standing rules, and its facts."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.diagnosis.finding import Finding, Possibility, Suspect
from rankscope.diagnosis.verdict import Certainty, Outcome, ProcessKind, Where
from rankscope.diagnosis.views import (
    LIFE_CPU_SHARE,
    LIFE_IO_BYTES_PER_S,
    cpu_share,
    io_rate,
    place,
    ranks_text,
    same_stack,
)
from rankscope.evidence.model import ChildProcess, Evidence, RankEvidence


@dataclass(frozen=True, slots=True)
class Stand:
    cause: str
    at: Where | None
    doing: str
    because: tuple[str, ...]
    fix: tuple[str, ...]
    alternatives: tuple[Possibility, ...] = ()
    summary: str | None = None
    """The headline, where `rank N is stuck in PLACE, DOING` does not say it well."""
    process: ProcessKind = "rank"
    pid: int | None = None
    """The guilty process, where it is not the rank itself."""
    others: tuple[Suspect, ...] = ()
    certainty: Certainty | None = None
    """None: by how long the rank has been still."""
    outcome: Outcome = "hang"
    references: tuple[str, ...] = ()


def certainty_of(rank: RankEvidence, evidence: Evidence) -> Certainty:
    """Likely once the rank has been still for as long as the run allows; before that only possible."""
    if rank.still_for_s is None or evidence.stall_after_s is None:
        return "possible"
    return "likely" if rank.still_for_s >= evidence.stall_after_s else "possible"


def finding_of(stand: Stand, rank: RankEvidence, evidence: Evidence, waiters: tuple[int, ...]) -> Finding:
    culprit = Suspect(
        rank=rank.rank,
        host=rank.host or None,
        pid=(rank.pid or None) if stand.pid is None else stand.pid,
        process=stand.process,
        where=stand.at,
        doing=stand.doing,
    )
    others = tuple(number for number in waiters if number != rank.rank)
    waiting = (f"{ranks_text(others)} {'waits' if len(others) == 1 else 'wait'} for it",) if others else ()
    return Finding(
        outcome=stand.outcome,
        cause=stand.cause,
        certainty=stand.certainty or certainty_of(rank, evidence),
        culprits=(culprit, *stand.others),
        summary=stand.summary or f"rank {rank.rank} is stuck in {place(stand.at)}, {stand.doing}",
        because=(*stand.because, *waiting),
        fix=stand.fix,
        alternatives=(*stand.alternatives, *_not_joined(rank, evidence)),
        references=stand.references,
    )


def movement(seen: RankEvidence | ChildProcess) -> tuple[str, ...]:
    """What the samples say about life: `two samples 0.5 s apart: same stack, no processor time`."""
    times = [sample.at for sample in (seen.processes if len(seen.processes) > 1 else seen.stacks)]
    facts: list[str] = []
    same, share, rate = same_stack(seen), cpu_share(seen.processes), io_rate(seen.processes)
    if same is not None:
        facts.append("same stack" if same else "the stack moved")
    if share is not None:
        facts.append("no processor time" if share < LIFE_CPU_SHARE else f"{share:.0%} of one core")
    if rate is not None:
        facts.append(
            "nothing read or written" if rate < LIFE_IO_BYTES_PER_S else f"{rate / 1e6:.1f} MB/s read and written"
        )
    found = [f"{_count(len(times))} samples {times[-1] - times[0]:.1f} s apart: {', '.join(facts)}"] if facts else []
    if isinstance(seen, RankEvidence) and seen.still_for_s:
        found.append(f"not moved for {seen.still_for_s:.0f} s")
    return tuple(found)


def busy(seen: RankEvidence | ChildProcess) -> bool:
    """Processor time or bytes between the samples; the changing line of a polling loop does not count."""
    share, rate = cpu_share(seen.processes), io_rate(seen.processes)
    return (share is not None and share >= LIFE_CPU_SHARE) or (rate is not None and rate >= LIFE_IO_BYTES_PER_S)


def _count(number: int) -> str:
    return {2: "two", 3: "three", 4: "four"}.get(number, str(number))


def _not_joined(rank: RankEvidence, evidence: Evidence) -> tuple[Possibility, ...]:
    if rank.progress is None or rank.progress.declared_world > 0:
        return ()
    joined = [
        other.rank for other in evidence.ranks if other.progress is not None and other.progress.declared_world > 0
    ]
    if not joined:
        return ()
    return (
        Possibility(
            "rank-missing",
            "possible",
            f"rank {rank.rank} has not reached init_process_group; {ranks_text(joined)} have",
        ),
    )
