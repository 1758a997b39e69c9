"""Facts about the ranks' calls: who called what, who did not, who waits in what, and why the code went that way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where

Effect = Literal["leads-to", "leads-past", "keeps-from"]


@dataclass(frozen=True, slots=True)
class Called(Fact):
    """Ranks made this call at the place of which is spoken."""

    ranks: tuple[int, ...]
    op: str
    where: Where | None
    numel: int = -1
    dtype: str = ""
    """Told only where the ranks differ in it, as the root."""
    root: int = -1
    step: int = 0
    caller: Where | None = None
    """Where sides stand on one line: the innermost line on which they differ."""
    through: str = ""
    """The library's function between the user's line and the call."""


@dataclass(frozen=True, slots=True)
class NotCome(Fact):
    """Ranks that have not come to the call of which is spoken."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FirstDifference(Fact):
    """The place of a group's sequence up to which the ranks agreed."""

    group: str
    place: int
    round: int = 0
    """The iteration of that call, where no optimizer step counts it."""
    op: str = ""
    where: Where | None = None


@dataclass(frozen=True, slots=True)
class Extra(Fact):
    """A call that no other rank of the group makes there."""

    call: Called


@dataclass(frozen=True, slots=True)
class Skipped(Fact):
    """Ranks left out calls that the others made, and went on."""

    ranks: tuple[int, ...]
    op: str
    where: Where | None
    count: int = 1
    round: int = 0
    """How often the others had made it by then; 0 where it is not known."""


@dataclass(frozen=True, slots=True)
class Sides(Fact):
    """Ranks went two or more ways, and nothing shows which of them is wrong."""

    calls: tuple[Called | NotCome, ...]


@dataclass(frozen=True, slots=True)
class Mismatch(Fact):
    """Calls that stand for one another and can never match."""

    calls: tuple[Called | NotCome, ...]


@dataclass(frozen=True, slots=True)
class WrongPair(Fact):
    """Calls that were taken for one and are not."""

    calls: tuple[Called | NotCome, ...]


@dataclass(frozen=True, slots=True)
class PairedAnyway(Fact):
    """Calls that do not belong together were taken for one, and the job went on."""

    group: str
    place: int
    since: int
    """Collectives that the group has made after it."""
    later: tuple[Called, ...] = ()
    """Calls of other operations, sizes or roots that were paired because of it."""


@dataclass(frozen=True, slots=True)
class Shares(Fact):
    """In an exchange among all ranks of a group, one sends another more or fewer elements than that one expects."""

    sender: int
    receiver: int
    sent: int
    expected: int
    op: str
    where: Where | None
    """Where the rank at fault made the call; the sender where nobody is."""
    more: int = 0
    """So many other shares of the same call do not fit either."""


@dataclass(frozen=True, slots=True)
class OtherShares(Fact):
    """A rank exchanges another share than in all calls before from the same line; its partner the same as ever."""

    rank: int
    partner: int
    times: int


@dataclass(frozen=True, slots=True)
class Condition(Fact):
    """A condition in the user's code that decided which way ranks went."""

    test: str
    form: str
    """`if`, `else`, `and`, `or`, `return`, `continue`, `break`, `decorator` and the like; see `Branch.kind`."""
    code: str
    """The whole of it as the source has it, with dots for what depends on it: `rank == 0 and …`."""
    where: Where
    effect: Effect
    ranks: tuple[int, ...]
    target: Where | None
    """The call that it leads to, or past."""


@dataclass(frozen=True, slots=True)
class Alone(Fact):
    """Ranks that went another way than most ranks of the group."""

    ranks: tuple[int, ...]
    others: int


@dataclass(frozen=True, slots=True)
class NewWay(Fact):
    """Ranks went a way that nobody had gone before; the other had been usual."""

    ranks: tuple[int, ...]
    times: int


@dataclass(frozen=True, slots=True)
class WentOn(Fact):
    """After the first difference the sequences agree again, so many calls apart: that is what happened there."""

    ranks: tuple[int, ...]
    what: Literal["extra", "skipped", "changed"]
    count: int


@dataclass(frozen=True, slots=True)
class WaitsIn(Fact):
    """Ranks that stand in this call now."""

    ranks: tuple[int, ...]
    op: str
    group: str = ""
    """Empty where it belongs to none."""
    number: int = 0
    """Its place in the group's sequence; 0 where it is not known."""
    peer: int = -1
    where: Where | None = None
    several: bool = False
    """It waits for one of several messages."""


@dataclass(frozen=True, slots=True)
class Now(Fact):
    """Where all the ranks that cannot go on stand now."""

    waits: tuple[WaitsIn, ...]


@dataclass(frozen=True, slots=True)
class GroupOrder(Fact):
    """Each waits in one process group for a rank that waits for it in another."""

    ranks: tuple[int, ...]
    """Those who took another order than the rest; all of them where nobody did."""
    groups: int
    waits: tuple[WaitsIn, ...]
    told_apart: bool


@dataclass(frozen=True, slots=True)
class Circle(Fact):
    """No rank of the circle can go on before another does."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batches(Fact):
    """Batches that a rank took from its loader."""

    rank: int
    taken: int
    exhausted: bool


@dataclass(frozen=True, slots=True)
class LeftLoop(Fact):
    """Ranks left a loop in which the others still are."""

    ranks: tuple[int, ...]
    loop: Where


@dataclass(frozen=True, slots=True)
class OutOfData(Fact):
    """Ranks ran out of batches before the others, and went on."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    where: Where | None


@dataclass(frozen=True, slots=True)
class Passes(Fact):
    """Backward passes that a rank made at one place, and how many of them communicated."""

    rank: int
    made: int
    communicating: int


@dataclass(frozen=True, slots=True)
class UnevenPasses(Fact):
    """Ranks do not communicate in the same passes of a loop."""

    ranks: tuple[int, ...]
    where: Where | None
    number: int = 0
    """The first pass in which they differ; 0 where it is not known."""
    reducing: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FewerMessages(Fact):
    """A rank made fewer, or more, sends and receives than in every round before."""

    rank: int
    op: str
    peer: int
    made: int
    usual: int
    where: Where | None = None


@dataclass(frozen=True, slots=True)
class MessageMissing(Fact):
    """A rank waits for one more message, and its partner has gone on."""

    wait: WaitsIn
    gone: WaitsIn


@dataclass(frozen=True, slots=True)
class WrongPeer(Fact):
    """A rank's message names another rank than ever before; the usual one waits for it."""

    wait: WaitsIn
    usual: int
    times: int


@dataclass(frozen=True, slots=True)
class OtherPeers(Fact):
    """A rank exchanged messages with other ranks than ever before from the same line."""

    rank: int
    new: tuple[int, ...]
    """With whom it exchanged now and never before."""
    gone: tuple[int, ...]
    """With whom it always had, and not now."""
    times: int
    where: Where | None = None


@dataclass(frozen=True, slots=True)
class NoMeeting(Fact):
    """A send and a receive name each other's ranks and still both wait."""

    send: WaitsIn
    receive: WaitsIn
    groups_differ: bool


@dataclass(frozen=True, slots=True)
class NobodyMakes(Fact):
    """A message of which no rank makes the other half."""

    wait: WaitsIn


@dataclass(frozen=True, slots=True)
class NoDifferenceSeen(Fact):
    """Proven stuck, yet the sequences do not show where the ranks parted."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndedAfter(Fact):
    """A rank that left out a call went on and ended well, while others waited for one more."""

    rank: int
    code: int


@dataclass(frozen=True, slots=True)
class Perhaps(Fact):
    """Why another cause is not ruled out."""

    reason: Literal[
        "calls-differ",
        "skipped-before",
        "one-call-missing",
        "left-loop-otherwise",
        "loop-left-early",
        "other-side-expects-more",
        "fewer-batches",
        "peer-left-out-message",
        "message-behind",
        "large-message",
        "wrong-peer-or-tag",
        "left-too-early",
        "passed-once",
    ]
    condition: Condition | None = None
