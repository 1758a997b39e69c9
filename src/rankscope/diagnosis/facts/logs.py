"""What logs tell: who waited until a time limit, who fell silent, what the ranks called where torch compared them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where

Deed = Literal[
    "work",
    "block",
    "block-before-init",
    "killed",
    "ended",
    "failed",
    "failed-after-dump",
    "wait",
    "loads",
    "gpu",
    "skip",
    "skip-before",
    "ahead",
    "stand-for-one-another",
]


@dataclass(frozen=True, slots=True)
class May(Fact):
    """What ranks may have done, as far as the evidence goes. No rank: one that is not known."""

    ranks: tuple[int, ...]
    deed: Deed


@dataclass(frozen=True, slots=True)
class ComparedCall(Fact):
    """What ranks called, as torch told when it compared the calls (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""

    ranks: tuple[int, ...]
    op: str
    shape: str
    where: Where | None


@dataclass(frozen=True, slots=True)
class ComparedCallsDiffer(Fact):
    """The ranks called different collectives, as torch itself compared them."""

    sides: tuple[ComparedCall, ...]


@dataclass(frozen=True, slots=True)
class OddCall(Fact):
    """Few ranks called one thing, where most called another."""

    odd: tuple[ComparedCall, ...]
    usual: ComparedCall


@dataclass(frozen=True, slots=True)
class ComparedBeforehand(Fact):
    """Torch compared the calls before they were made."""


@dataclass(frozen=True, slots=True)
class LoggedCall(Fact):
    """A collective as a log names it; an empty name where the log does not."""

    op: str
    seq: int | None = None
    numel: int | None = None


@dataclass(frozen=True, slots=True)
class WaitedInVain(Fact):
    """Ranks waited in a call until the time was over, and others did not come to it."""

    ranks: tuple[int, ...]
    call: LoggedCall
    absent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DidNotCome(Fact):
    """Of a rank: it did not come to a call that others waited in."""

    call: LoggedCall


@dataclass(frozen=True, slots=True)
class RanIntoTimeLimit(Fact):
    """Ranks whose logs say that a collective took longer than its time limit."""

    ranks: tuple[int, ...]
    call: LoggedCall


@dataclass(frozen=True, slots=True)
class ToldNoTimeLimit(Fact):
    """Ranks whose logs say nothing of a time limit, where those of others do."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BarrierNames(Fact):
    """A monitored barrier names ranks that did not arrive."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HadEntered(Fact):
    """The collective that ranks had entered last, by its number; `waited`: they waited in it."""

    ranks: tuple[int, ...]
    seq: int
    waited: bool


@dataclass(frozen=True, slots=True)
class WaitedIn(Fact):
    """Ranks whose logs show that they waited in a call."""

    ranks: tuple[int, ...]
    call: LoggedCall


@dataclass(frozen=True, slots=True)
class OperationsDiffer(Fact):
    """At one place of the sequence, some waited in one operation and some in another."""

    seq: int
    sides: tuple[WaitedIn, ...]


@dataclass(frozen=True, slots=True)
class NeverMatch(Fact):
    """Operations that differ at one place of the sequence never match."""


@dataclass(frozen=True, slots=True)
class LastLine(Fact):
    """The last line of a rank in the logs, or of the log where no rank is known; None where there is none."""

    rank: int | None
    line: str | None
    silent_s: float | None
    """Up to the last line of any rank."""
    ago_s: float | None
    """Up to when the logs were read."""


@dataclass(frozen=True, slots=True)
class NeverFinished(Fact):
    """Every rank of the job entered the same collective, and it did not finish within its time limit."""

    ranks: tuple[int, ...]
    call: LoggedCall


@dataclass(frozen=True, slots=True)
class JoinedStore(Fact):
    """How many ranks had joined the process group that was to come about."""

    joined: int
    world: int


@dataclass(frozen=True, slots=True)
class StaleStore(Fact):
    """More have joined than there are ranks: the store counts those of an earlier attempt."""

    joined: int
    world: int


@dataclass(frozen=True, slots=True)
class NotAtInit(Fact):
    """Ranks did not reach init_process_group; where they are not known, how many of how many."""

    ranks: tuple[int, ...]
    missing: int
    world: int


@dataclass(frozen=True, slots=True)
class DidNotReach(Fact):
    """Of a rank: it did not reach a call that every rank makes at the beginning."""

    call: Literal["init_process_group", "first collective"]


@dataclass(frozen=True, slots=True)
class MasterAbsent(Fact):
    """Rank 0 did not reach the first collective, for which the ranks waited."""

    waiting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MasterHandsOutId(Fact):
    """Rank 0 hands out NCCL's id at its first collective; the others asked for it in vain."""


@dataclass(frozen=True, slots=True)
class PeerWentAway(Fact):
    """NCCL noticed the closed connection of a process, which it names by its local rank."""

    local_rank: int


@dataclass(frozen=True, slots=True)
class WroteKnown(Fact):
    """A rank (None: one that the log does not name) wrote a line of which it is known what it signifies."""

    rank: int | None
    meaning: str
    line: str


@dataclass(frozen=True, slots=True)
class OnlySuffered(Fact):
    """The logs hold nothing but words of those who suffered."""

    ranks: tuple[int, ...]
    meaning: str


@dataclass(frozen=True, slots=True)
class Suffered(Fact):
    """A rank wrote a message that only victims of another's failure write."""

    rank: int | None
    meaning: str


@dataclass(frozen=True, slots=True)
class FellSilent(Fact):
    """Ranks stopped writing long before the others did."""

    ranks: tuple[int, ...]
    silent_s: float
