"""How many operations each rank has launched, by NCCL's own count, and who is behind or ahead of whom."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rankscope.diagnosis.facts.launched import Apart, LaunchCount
from rankscope.evidence.communicators import CommMember, Communicator, RasLook
from rankscope.evidence.model import Evidence

Key = tuple[str, int, str]
"""Communicator, its size, and the operation."""


class Launched(msgspec.Struct, frozen=True):
    """The counts of the newest look, and of the one before it."""

    counts: dict[Key, dict[int, int]]
    before: dict[Key, dict[int, int]]
    over_s: float
    """Between the looks; 0 with a single one."""

    def grew(self, rank: int) -> bool:
        """The rank launched more between the looks."""
        return any(
            rank in ranks and ranks[rank] > self.before.get(key, {}).get(rank, ranks[rank])
            for key, ranks in self.counts.items()
        )

    def anybody_grew(self) -> bool:
        return any(self.grew(rank) for rank in {rank for ranks in self.counts.values() for rank in ranks})

    def apart(self) -> tuple[Apart, ...]:
        """Operations of which the members of a communicator have not launched equally many; widest apart first."""
        found = [
            Apart(operation, size, _sides(ranks), self.over_s)
            for (_, size, operation), ranks in self.counts.items()
            if len(set(ranks.values())) > 1
        ]
        return tuple(sorted(found, key=lambda apart: apart.sides[-1].count - apart.sides[0].count, reverse=True))

    def behind(self) -> frozenset[int]:
        """Ranks that somebody is ahead of, and that are ahead of nobody: those the others wait for."""
        lower, higher = self._lower(), self._higher()
        return lower - higher

    def ahead(self) -> frozenset[int]:
        """Ranks that are ahead of somebody, and behind nobody."""
        lower, higher = self._lower(), self._higher()
        return higher - lower

    def both(self) -> frozenset[int]:
        """Ranks that launched more of one thing and less of another."""
        return self._lower() & self._higher()

    def _lower(self) -> frozenset[int]:
        return frozenset(
            rank for ranks in self.counts.values() for rank, count in ranks.items() if count < max(ranks.values())
        )

    def _higher(self) -> frozenset[int]:
        return frozenset(
            rank for ranks in self.counts.values() for rank, count in ranks.items() if count > min(ranks.values())
        )


def read_launched(evidence: Evidence) -> Launched | None:
    """None where NCCL told nothing. On several machines every one hears of the whole job: one of them is enough."""
    looks = next((host.ras for host in evidence.hosts if host.ras), ())
    if not looks:
        return None
    first, last = looks[0], looks[-1]
    names = _ranks_by_process(last, evidence)
    return Launched(_counts(last, names, evidence), _counts(first, names, evidence), last.at - first.at)


def _counts(look: RasLook, names: dict[tuple[str, int], int], evidence: Evidence) -> dict[Key, dict[int, int]]:
    found: dict[Key, dict[int, int]] = {}
    for comm in look.communicators:
        for rank, member in _named(comm, names, evidence):
            for operation, count in member.launched.items():
                found.setdefault((comm.id, comm.size, operation), {})[rank] = count
    return found


def _named(
    comm: Communicator, names: dict[tuple[str, int], int], evidence: Evidence
) -> Iterator[tuple[int, CommMember]]:
    """The members that can be told apart, by their rank in the job."""
    for member in comm.members:
        if comm.size == evidence.world_size:
            yield member.rank, member
        elif member.pid is not None and (member.host, member.pid) in names:
            yield names[member.host, member.pid], member


def _ranks_by_process(look: RasLook, evidence: Evidence) -> dict[tuple[str, int], int]:
    """Host and pid → rank: told by a communicator of everybody, or known of this machine's own ranks."""
    members = [(comm, member) for comm in look.communicators for member in comm.members if member.pid is not None]
    found = {
        (member.host, member.pid): member.rank
        for comm, member in members
        if comm.size == evidence.world_size and member.pid is not None
    }
    here = {seen.pid: seen.rank for seen in evidence.ranks}
    hosts = {seen.host for seen in evidence.ranks}
    for _, member in members:
        # NCCL names machines by address: pids tell ranks only while all of them run on one machine.
        if member.pid in here and len(hosts) == 1 and member.pid is not None:
            found.setdefault((member.host, member.pid), here[member.pid])
    return found


def _sides(ranks: dict[int, int]) -> tuple[LaunchCount, ...]:
    """Fewest first."""
    counts = sorted(set(ranks.values()))
    return tuple(LaunchCount(tuple(sorted(rank for rank in ranks if ranks[rank] == count)), count) for count in counts)
