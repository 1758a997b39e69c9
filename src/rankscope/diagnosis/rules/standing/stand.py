"""What a rank does instead of joining the others: the common form of all standing rules, and its facts."""

from __future__ import annotations

import msgspec

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.standing import AwaitedBy, Moved, NotInitialised, Still, Stuck, WorksBetweenSleeps
from rankscope.diagnosis.finding import Finding, Possibility, Suspect
from rankscope.diagnosis.rules.standing.life import little_work
from rankscope.diagnosis.verdict import Certainty, Outcome, ProcessKind, Where
from rankscope.diagnosis.views import LIFE_CPU_SHARE, LIFE_IO_BYTES_PER_S, cpu_share, io_rate, same_stack
from rankscope.evidence.model import ChildProcess, Evidence, RankEvidence

PLACE, MECHANISM, CALL, SERVICE, AWAITED = range(5)
"""How much of a wait a reading explains: where it stands, by what means it waits (a lock, a sleep), what the call waits
for (an address, a path), the service behind it, and whom it waits for and what that one does instead."""


class Stand(msgspec.Struct, frozen=True):
    cause: str
    at: Where | None
    doing: Fact
    because: tuple[Fact, ...]
    fix: tuple[Advice, ...]
    alternatives: tuple[Possibility, ...] = ()
    summary: Fact | None = None
    """The headline, where `rank N is stuck in PLACE, DOING` does not say it well."""
    process: ProcessKind = "rank"
    pid: int | None = None
    """The guilty process, where it is not the rank itself."""
    others: tuple[Suspect, ...] = ()
    certainty: Certainty | None = None
    """None: by how long the rank has been still."""
    outcome: Outcome = "hang"
    references: tuple[str, ...] = ()
    explains: int = CALL
    """Of several readings of one stand, the one that explains most is right."""


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
    return Finding(
        outcome=stand.outcome,
        cause=stand.cause,
        certainty=stand.certainty or certainty_of(rank, evidence),
        culprits=(culprit, *stand.others),
        summary=stand.summary or Stuck(rank.rank, stand.at, stand.doing),
        because=(*stand.because, *((AwaitedBy(others),) if others else ())),
        fix=stand.fix,
        alternatives=(*stand.alternatives, *_not_joined(rank, evidence)),
        references=stand.references,
    )


def movement(seen: RankEvidence | ChildProcess) -> tuple[Fact, ...]:
    """What the samples say about life."""
    times = [sample.at for sample in (seen.processes if len(seen.processes) > 1 else seen.stacks)]
    same, share, rate = same_stack(seen), cpu_share(seen.processes), io_rate(seen.processes)
    found: list[Fact] = []
    if same is not None or share is not None or rate is not None:
        found.append(Moved(len(times), times[-1] - times[0], same, share, rate))
    if not isinstance(seen, RankEvidence):
        return tuple(found)
    little = little_work(seen)
    if little is not None:
        found.append(WorksBetweenSleeps(little.wakes, little.over_s, little.cpu_s))
    elif seen.still_for_s is not None and seen.still_for_s >= 1.0:
        found.append(Still(seen.still_for_s))
    return tuple(found)


def busy(seen: RankEvidence | ChildProcess) -> bool:
    """Processor time or bytes between the samples; the changing line of a polling loop does not count."""
    share, rate = cpu_share(seen.processes), io_rate(seen.processes)
    return (share is not None and share >= LIFE_CPU_SHARE) or (rate is not None and rate >= LIFE_IO_BYTES_PER_S)


def _not_joined(rank: RankEvidence, evidence: Evidence) -> tuple[Possibility, ...]:
    if rank.progress is None or rank.progress.declared_world > 0:
        return ()
    joined = tuple(
        other.rank for other in evidence.ranks if other.progress is not None and other.progress.declared_world > 0
    )
    if not joined:
        return ()
    return (Possibility("rank-missing", "possible", NotInitialised(rank.rank, joined)),)
