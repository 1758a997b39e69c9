"""What dumps of torch's flight recorder tell, and stacks alone: who entered a collective, and who did not."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where


@dataclass(frozen=True, slots=True)
class RecordedCall(Fact):
    """A call of a group, by its place in the group's sequence; 0 where it has none."""

    op: str
    seq: int
    group: str
    where: Where | None


@dataclass(frozen=True, slots=True)
class EnteredNotFinished(Fact):
    """Ranks whose dumps show a collective that they entered and did not finish."""

    ranks: tuple[int, ...]
    call: RecordedCall


@dataclass(frozen=True, slots=True)
class DidNotEnter(Fact):
    """Ranks did not enter a call that others reached; `last` is the last call on record, None where there is none."""

    ranks: tuple[int, ...]
    call: RecordedCall
    last: RecordedCall | None


@dataclass(frozen=True, slots=True)
class LastRecorded(Fact):
    """A rank did not enter the call that others wait in; its record ends with `last`."""

    rank: int
    last: RecordedCall | None


@dataclass(frozen=True, slots=True)
class TheFewer(Fact):
    """The absent ranks are the fewer."""


@dataclass(frozen=True, slots=True)
class Unconditional(Fact):
    """The call depends on no condition."""


@dataclass(frozen=True, slots=True)
class OnlyTheyCall(Fact):
    """Ranks made a call that no other rank of the group makes there."""

    ranks: tuple[int, ...]
    call: RecordedCall


@dataclass(frozen=True, slots=True)
class WaitsInRecorded(Fact):
    """Of a rank: it waits in a collective that its dump holds."""

    call: RecordedCall


@dataclass(frozen=True, slots=True)
class Undecided(Fact):
    """Ranks wait in a call that others did not enter; of `unseen` there is no dump."""

    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    unseen: tuple[int, ...]
    call: RecordedCall


@dataclass(frozen=True, slots=True)
class EitherSide(Fact):
    """Dumps do not tell whether the call is one too many, or the others do not come to it."""


@dataclass(frozen=True, slots=True)
class WaitsForUndumped(Fact):
    """All dumps wait in one call. `only`: nobody but the ranks without a dump can be absent from it."""

    waiting: tuple[int, ...]
    undumped: tuple[int, ...]
    call: RecordedCall
    only: bool


@dataclass(frozen=True, slots=True)
class NoDump(Fact):
    """No dump of these ranks was given. `only`: every other rank of the group has entered the call."""

    ranks: tuple[int, ...]
    only: bool


@dataclass(frozen=True, slots=True)
class AwaitedUndumped(Fact):
    """A rank without a dump, for which a call waits."""

    call: RecordedCall


@dataclass(frozen=True, slots=True)
class ParkedIn(Fact):
    """Ranks wait in a call of torch.distributed, by their stacks; an empty name where only torch is known."""

    ranks: tuple[int, ...]
    op: str
    where: Where | None


@dataclass(frozen=True, slots=True)
class ParkedApart(Fact):
    """The ranks' stacks stand in different collectives."""

    sides: tuple[ParkedIn, ...]


@dataclass(frozen=True, slots=True)
class NobodyMoved(Fact):
    """None of the ranks moved while they were watched."""
