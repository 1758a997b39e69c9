"""What dumps of torch's flight recorder tell, and stacks alone: who entered a collective, and who did not."""

from __future__ import annotations

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where


class RecordedCall(Fact, frozen=True):
    """A call of a group, by its place in the group's sequence; 0 where it has none."""

    op: str
    seq: int
    group: str
    where: Where | None


class EnteredNotFinished(Fact, frozen=True):
    """Ranks whose dumps show a collective that they entered and did not finish."""

    ranks: tuple[int, ...]
    call: RecordedCall


class DidNotEnter(Fact, frozen=True):
    """Ranks did not enter a call that others reached; `last` is the last call on record, None where there is none."""

    ranks: tuple[int, ...]
    call: RecordedCall
    last: RecordedCall | None


class LastRecorded(Fact, frozen=True):
    """A rank did not enter the call that others wait in; its record ends with `last`."""

    rank: int
    last: RecordedCall | None


class TheFewer(Fact, frozen=True):
    """The absent ranks are the fewer."""


class Unconditional(Fact, frozen=True):
    """The call depends on no condition."""


class OnlyTheyCall(Fact, frozen=True):
    """Ranks made a call that no other rank of the group makes there."""

    ranks: tuple[int, ...]
    call: RecordedCall


class WaitsInRecorded(Fact, frozen=True):
    """Of a rank: it waits in a collective that its dump holds."""

    call: RecordedCall


class Undecided(Fact, frozen=True):
    """Ranks wait in a call that others did not enter; of `unseen` there is no dump."""

    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    unseen: tuple[int, ...]
    call: RecordedCall


class EitherSide(Fact, frozen=True):
    """Dumps do not tell whether the call is one too many, or the others do not come to it."""


class WaitsForUndumped(Fact, frozen=True):
    """All dumps wait in one call. `only`: nobody but the ranks without a dump can be absent from it."""

    waiting: tuple[int, ...]
    undumped: tuple[int, ...]
    call: RecordedCall
    only: bool


class NoDump(Fact, frozen=True):
    """No dump of these ranks was given. `only`: every other rank of the group has entered the call."""

    ranks: tuple[int, ...]
    only: bool


class AwaitedUndumped(Fact, frozen=True):
    """A rank without a dump, for which a call waits."""

    call: RecordedCall


class ParkedIn(Fact, frozen=True):
    """Ranks wait in a call of torch.distributed, by their stacks; an empty name where only torch is known."""

    ranks: tuple[int, ...]
    op: str
    where: Where | None


class ParkedApart(Fact, frozen=True):
    """The ranks' stacks stand in different collectives."""

    sides: tuple[ParkedIn, ...]


class NobodyMoved(Fact, frozen=True):
    """None of the ranks moved while they were watched."""
