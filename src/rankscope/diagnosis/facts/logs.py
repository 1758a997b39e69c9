"""What logs tell: who waited until a time limit, who fell silent, what the ranks called where torch compared them."""

from __future__ import annotations

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


class May(Fact, frozen=True):
    """What ranks may have done, as far as the evidence goes. No rank: one that is not known."""

    ranks: tuple[int, ...]
    deed: Deed


class ComparedCall(Fact, frozen=True):
    """What ranks called, as torch told when it compared the calls (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""

    ranks: tuple[int, ...]
    op: str
    shape: str
    where: Where | None


class ComparedCallsDiffer(Fact, frozen=True):
    """The ranks called different collectives, as torch itself compared them."""

    sides: tuple[ComparedCall, ...]


class OddCall(Fact, frozen=True):
    """Few ranks called one thing, where most called another."""

    odd: tuple[ComparedCall, ...]
    usual: ComparedCall


class ComparedBeforehand(Fact, frozen=True):
    """Torch compared the calls before they were made."""


class LoggedCall(Fact, frozen=True):
    """A collective as a log names it; an empty name where the log does not."""

    op: str
    seq: int | None = None
    numel: int | None = None


class WaitedInVain(Fact, frozen=True):
    """Ranks waited in a call until the time was over, and others did not come to it."""

    ranks: tuple[int, ...]
    call: LoggedCall
    absent: tuple[int, ...]


class DidNotCome(Fact, frozen=True):
    """Of a rank: it did not come to a call that others waited in."""

    call: LoggedCall


class RanIntoTimeLimit(Fact, frozen=True):
    """Ranks whose logs say that a collective took longer than its time limit."""

    ranks: tuple[int, ...]
    call: LoggedCall


class ToldNoTimeLimit(Fact, frozen=True):
    """Ranks whose logs say nothing of a time limit, where those of others do."""

    ranks: tuple[int, ...]


class BarrierNames(Fact, frozen=True):
    """A monitored barrier names ranks that did not arrive."""

    ranks: tuple[int, ...]


class HadEntered(Fact, frozen=True):
    """The collective that ranks had entered last, by its number; `waited`: they waited in it."""

    ranks: tuple[int, ...]
    seq: int
    waited: bool


class WaitedIn(Fact, frozen=True):
    """Ranks whose logs show that they waited in a call."""

    ranks: tuple[int, ...]
    call: LoggedCall


class OperationsDiffer(Fact, frozen=True):
    """At one place of the sequence, some waited in one operation and some in another."""

    seq: int
    sides: tuple[WaitedIn, ...]


class NeverMatch(Fact, frozen=True):
    """Operations that differ at one place of the sequence never match."""


class LastLine(Fact, frozen=True):
    """The last line of a rank in the logs, or of the log where no rank is known; None where there is none."""

    rank: int | None
    line: str | None
    silent_s: float | None
    """Up to the last line of any rank."""
    ago_s: float | None
    """Up to when the logs were read."""


class NeverFinished(Fact, frozen=True):
    """Every rank of the job entered the same collective, and it did not finish within its time limit."""

    ranks: tuple[int, ...]
    call: LoggedCall


class JoinedStore(Fact, frozen=True):
    """How many ranks had joined the process group that was to come about."""

    joined: int
    world: int


class StaleStore(Fact, frozen=True):
    """More have joined than there are ranks: the store counts those of an earlier attempt."""

    joined: int
    world: int


class NotAtInit(Fact, frozen=True):
    """Ranks did not reach init_process_group; where they are not known, how many of how many."""

    ranks: tuple[int, ...]
    missing: int
    world: int


class DidNotReach(Fact, frozen=True):
    """Of a rank: it did not reach a call that every rank makes at the beginning."""

    call: Literal["init_process_group", "first collective"]


class MasterAbsent(Fact, frozen=True):
    """Rank 0 did not reach the first collective, for which the ranks waited."""

    waiting: tuple[int, ...]


class MasterHandsOutId(Fact, frozen=True):
    """Rank 0 hands out NCCL's id at its first collective; the others asked for it in vain."""


class PeerWentAway(Fact, frozen=True):
    """NCCL noticed the closed connection of a process, which it names by its local rank."""

    local_rank: int


class WroteKnown(Fact, frozen=True):
    """A rank (None: one that the log does not name) wrote a line of which it is known what it signifies."""

    rank: int | None
    known: str
    """The name of the known error."""
    line: str


class OnlySuffered(Fact, frozen=True):
    """The logs hold nothing but words of those who suffered."""

    ranks: tuple[int, ...]
    known: str


class Suffered(Fact, frozen=True):
    """A rank wrote a message that only victims of another's failure write."""

    rank: int | None
    known: str


class FellSilent(Fact, frozen=True):
    """Ranks stopped writing long before the others did."""

    ranks: tuple[int, ...]
    silent_s: float
