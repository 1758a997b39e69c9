"""Facts about the ranks' calls: who called what, who did not, who waits in what, and why the code went that way."""

from __future__ import annotations

from typing import Literal

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where

Effect = Literal["leads-to", "leads-past", "keeps-from"]


class Called(Fact, frozen=True):
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
    reduces: str = ""
    """`SUM`, `MAX` and the like, where the ranks differ in it."""
    shape: tuple[int, ...] = ()
    """Of what is reduced, where the ranks differ in it."""


class NotCome(Fact, frozen=True):
    """Ranks that have not come to the call of which is spoken."""

    ranks: tuple[int, ...]


class FirstDifference(Fact, frozen=True):
    """The place of a group's sequence up to which the ranks agreed."""

    group: str
    place: int
    round: int = 0
    """The iteration of that call, where no optimizer step counts it."""
    op: str = ""
    where: Where | None = None


class Extra(Fact, frozen=True):
    """A call that no other rank of the group makes there."""

    call: Called


class Skipped(Fact, frozen=True):
    """Ranks left out calls that the others made, and went on."""

    ranks: tuple[int, ...]
    op: str
    where: Where | None
    count: int = 1
    round: int = 0
    """How often the others had made it by then; 0 where it is not known."""


class Sides(Fact, frozen=True):
    """Ranks went two or more ways, and nothing shows which of them is wrong."""

    calls: tuple[Called | NotCome, ...]


class NobodyStandsOut(Fact, frozen=True):
    """All ranks that a divergence concerns went ways of their own."""

    ranks: tuple[int, ...]


class Mismatch(Fact, frozen=True):
    """Calls that stand for one another and can never match."""

    calls: tuple[Called | NotCome, ...]


class WrongPair(Fact, frozen=True):
    """Calls that were taken for one and are not."""

    calls: tuple[Called | NotCome, ...]


class PairedAnyway(Fact, frozen=True):
    """Calls that do not belong together were taken for one, and the job went on."""

    group: str
    place: int
    since: int
    """Collectives that the group has made after it."""
    later: tuple[Called, ...] = ()
    """Calls of other operations, sizes or roots that were paired because of it."""


class Shares(Fact, frozen=True):
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


class OtherShares(Fact, frozen=True):
    """A rank exchanges another share than in all calls before from the same line; its partner the same as ever."""

    rank: int
    partner: int
    times: int


class Condition(Fact, frozen=True):
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


class Alone(Fact, frozen=True):
    """Ranks that went another way than most ranks of the group."""

    ranks: tuple[int, ...]
    others: int


class NewWay(Fact, frozen=True):
    """Ranks went a way that nobody had gone before; the other had been usual."""

    ranks: tuple[int, ...]
    times: int


class WentOn(Fact, frozen=True):
    """After the first difference the sequences agree again, so many calls apart: that is what happened there."""

    ranks: tuple[int, ...]
    what: Literal["extra", "skipped", "changed"]
    count: int


class WaitsIn(Fact, frozen=True):
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


class Now(Fact, frozen=True):
    """Where all the ranks that cannot go on stand now."""

    waits: tuple[WaitsIn, ...]


class GroupOrder(Fact, frozen=True):
    """Each waits in one process group for a rank that waits for it in another."""

    ranks: tuple[int, ...]
    """Those who took another order than the rest; all of them where nobody did."""
    groups: int
    waits: tuple[WaitsIn, ...]
    told_apart: bool


class Circle(Fact, frozen=True):
    """No rank of the circle can go on before another does."""

    ranks: tuple[int, ...]


class Batches(Fact, frozen=True):
    """Batches that a rank took from its loader."""

    rank: int
    taken: int
    exhausted: bool


class LeftLoop(Fact, frozen=True):
    """Ranks left a loop in which the others still are."""

    ranks: tuple[int, ...]
    loop: Where


class OutOfData(Fact, frozen=True):
    """Ranks ran out of batches before the others, and went on."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    where: Where | None


class Passes(Fact, frozen=True):
    """Backward passes that a rank made at one place, and how many of them communicated."""

    rank: int
    made: int
    communicating: int


class UnevenPasses(Fact, frozen=True):
    """Ranks do not communicate in the same passes of a loop."""

    ranks: tuple[int, ...]
    where: Where | None
    number: int = 0
    """The first pass in which they differ; 0 where it is not known."""
    reducing: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()


class FewerMessages(Fact, frozen=True):
    """A rank made fewer, or more, sends and receives than in every round before."""

    rank: int
    op: str
    peer: int
    made: int
    usual: int
    where: Where | None = None


class MessageMissing(Fact, frozen=True):
    """A rank waits for one more message, and its partner has gone on."""

    wait: WaitsIn
    gone: WaitsIn


class ExpectsMore(Fact, frozen=True):
    """Two ranks agree on the number of messages in a step; a third, which always had as many, waits for one more."""

    rank: int
    agree: tuple[int, ...]
    messages: int
    """That the two exchanged in this step."""


class WrongPeer(Fact, frozen=True):
    """A rank's message names another rank than ever before; the usual one waits for it."""

    wait: WaitsIn
    usual: int
    times: int


class OtherPeers(Fact, frozen=True):
    """A rank exchanged messages with other ranks than ever before from the same line."""

    rank: int
    new: tuple[int, ...]
    """With whom it exchanged now and never before."""
    gone: tuple[int, ...]
    """With whom it always had, and not now."""
    times: int
    where: Where | None = None


class NoMeeting(Fact, frozen=True):
    """A send and a receive name each other's ranks and still both wait."""

    send: WaitsIn
    receive: WaitsIn
    groups_differ: bool


class NobodyMakes(Fact, frozen=True):
    """A message of which no rank makes the other half."""

    wait: WaitsIn


class NoDifferenceSeen(Fact, frozen=True):
    """Proven stuck, yet the sequences do not show where the ranks parted."""

    ranks: tuple[int, ...]


class EndedAfter(Fact, frozen=True):
    """A rank that left out a call went on and ended well, while others waited for one more."""

    rank: int
    code: int


class Perhaps(Fact, frozen=True):
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
