"""What can happen to a run, and what can be done about it. `ending` alone says which of the one leads to which of the
other; who sees something hands over an event, and `supervisor` carries out the actions."""

from __future__ import annotations

from typing import Literal

import msgspec

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.run import LauncherRaised
from rankscope.diagnosis.finding import Ruling
from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import Evidence
from rankscope.report.live import Line

Reason = Literal["hang", "failure", "numbers", "signal"]
"""Why a run is ended."""
Trigger = Literal["failure", "interrupt", "end"]
"""Why evidence is taken."""


class End(msgspec.Struct, frozen=True):
    """How a rank of this node stands."""

    rank: int
    code: int | None
    """None while it lives; negative for a signal."""
    at: float = 0.0
    by_launcher: bool = False

    @property
    def failed(self) -> bool:
        """By itself."""
        return bool(self.code) and not self.by_launcher


# Events.


class Started(msgspec.Struct, frozen=True):
    """The ranks of an attempt run, the first or a restarted one."""

    attempt: int
    world_size: int
    restarts_left: int
    several_nodes: bool


class Looked(msgspec.Struct, frozen=True):
    """The watcher has looked closely: at a job that is still, at bad numbers, or because another node asked."""

    ruling: Ruling
    evidence: Evidence
    still_s: float = 0.0
    """How long the job has been still."""
    patience_s: float = 0.0
    """Stillness from which a wait counts as a likely hang."""
    elsewhere: bool = False
    """A rank of another node has failed: this is the look at it."""
    given_up: bool = False
    """Torch's watchdog has given a collective up: the job ends whatever is done about it."""


class WatchBroke(msgspec.Struct, frozen=True):
    """A fault of ours kept the watcher from looking this time."""

    error: str


class Recovered(msgspec.Struct, frozen=True):
    """The job that had been still goes on."""

    after_s: float


class Noted(msgspec.Struct, frozen=True):
    """Something that a person may want to know beside the verdict."""

    fact: Fact


class StragglersSeen(msgspec.Struct, frozen=True):
    said: Fact


class Ruled(msgspec.Struct, frozen=True):
    """The node that speaks for the job has decided for all."""

    verdict: Verdict
    stop: bool
    reason: Reason
    signal: int | None
    speaker: str
    """Its host."""
    verified: bool = True
    """It has the job's key; a word without may inform, and stops nothing."""


class StoppedElsewhere(msgspec.Struct, frozen=True):
    """A signal came to the launcher of another node, which stops its ranks; this node speaks for all."""

    host: str
    signal: int
    at: float = 0.0
    """When it came, by this node's clock."""


class Signalled(msgspec.Struct, frozen=True):
    number: int
    at: float
    """By the monotonic clock."""
    ends: tuple[End, ...]
    """How the ranks stood when it came."""


class CutShort(msgspec.Struct, frozen=True):
    """A signal that torch itself took: the ranks are stopped, and we hear of it only now."""

    number: int


class ElasticEnded(msgspec.Struct, frozen=True):
    """Torch's agent has come to its end, well or not: nothing is left for it to do about a signal."""


class ElasticStops(msgspec.Struct, frozen=True):
    """Torch's agent is about to stop the ranks, for whatever reason; nothing has been stopped yet."""

    ends: tuple[End, ...]


class Taken(msgspec.Struct, frozen=True):
    """Evidence that was asked for with `TakeEvidence`."""

    ruling: Ruling
    evidence: Evidence
    living: bool
    """Some rank of this node has not ended."""


class LookBroke(msgspec.Struct, frozen=True):
    """Evidence that was asked for could not be taken, by a fault of ours or of the machine."""

    error: str


class SpeakerAsked(msgspec.Struct, frozen=True):
    """Not this node looks, but the one that speaks for all; its ruling will come."""


class NoRuling(msgspec.Struct, frozen=True):
    """It did not come in time."""


class Kept(msgspec.Struct, frozen=True):
    """What one `Keep` asked for is on disk, as far as the disk lets us."""


class RanksStopped(msgspec.Struct, frozen=True):
    """Torch's agent has done what it was let do."""


class ElasticLate(msgspec.Struct, frozen=True):
    """The time given with `SeeToTheEnd` is over."""

    living: bool


class Over(msgspec.Struct, frozen=True):
    """Torch's agent has come to its end, or was not waited for: no rank of this node runs any more."""

    ends: tuple[End, ...]
    suspected: bool = False
    """The ranks' pages speak of numbers that went bad."""
    failure: LauncherRaised | None = None
    """What kept the ranks from being started."""


Event = (
    Started
    | Looked
    | WatchBroke
    | Recovered
    | StragglersSeen
    | Noted
    | Ruled
    | StoppedElsewhere
    | Signalled
    | CutShort
    | ElasticEnded
    | ElasticStops
    | Taken
    | LookBroke
    | SpeakerAsked
    | NoRuling
    | Kept
    | RanksStopped
    | ElasticLate
    | Over
)


# Actions, carried out in the order in which they are given.


class Settle(msgspec.Struct, frozen=True):
    """Give the other ranks a moment to show whether they fail too."""


class TakeEvidence(msgspec.Struct, frozen=True):
    """Answered by `Taken`, `LookBroke` or `SpeakerAsked`."""

    trigger: Trigger
    alone: bool = False
    """Without the other nodes."""


class AwaitRuling(msgspec.Struct, frozen=True):
    """Answered by `NoRuling`, unless a ruling lets the ranks go before."""


class Keep(msgspec.Struct, frozen=True):
    """Evidence and verdict go to the run's folder; answered by `Kept`."""

    verdict: Verdict
    evidence: Evidence


class Write(msgspec.Struct, frozen=True):
    """The verdict of another node, whose evidence lies there."""

    verdict: Verdict


class TellNodes(msgspec.Struct, frozen=True):
    """The other nodes get the verdict and what follows from it, where this node speaks for all."""

    verdict: Verdict
    stop: bool
    reason: Reason
    signal: int | None = None


class TellSignal(msgspec.Struct, frozen=True):
    """The other nodes hear of the signal before any rank here ends because of it."""

    number: int


class Tell(msgspec.Struct, frozen=True):
    line: Line


class StopRanks(msgspec.Struct, frozen=True):
    """Torch's agent is asked to stop the ranks for good; it answers with `ElasticStops`."""


class Restart(msgspec.Struct, frozen=True):
    """Torch's agent is asked to stop the ranks and to start them again."""


class NoRestart(msgspec.Struct, frozen=True):
    """Torch's agent, which is about to stop the ranks, is not to start them again."""


class LetGo(msgspec.Struct, frozen=True):
    """Torch's agent may stop the ranks now."""

    hurry: bool
    """They are stuck: nobody will clean up."""


class Interrupt(msgspec.Struct, frozen=True):
    """Torch's agent learns of the signal."""

    number: int


class SeeToTheEnd(msgspec.Struct, frozen=True):
    """Torch's agent waits for ever on a store that is frozen or cut off: `ElasticLate` comes after this time."""

    within_s: float


class EndNow(msgspec.Struct, frozen=True):
    """Kill what is left of the job; answered by `Over`."""


class Conclude(msgspec.Struct, frozen=True):
    """The last verdict: completed with what is known only now, and written."""

    verdict: Verdict
    notes: tuple[str | Fact, ...]


class Show(msgspec.Struct, frozen=True):
    """The report of it."""


class SayGoodbye(msgspec.Struct, frozen=True):
    """To the other nodes."""


class Exit(msgspec.Struct, frozen=True):
    code: int


class ExitNow(msgspec.Struct, frozen=True):
    """Without waiting for torch's agent."""

    code: int


Action = (
    Settle
    | TakeEvidence
    | AwaitRuling
    | Keep
    | Write
    | TellNodes
    | TellSignal
    | Tell
    | StopRanks
    | Restart
    | NoRestart
    | LetGo
    | Interrupt
    | SeeToTheEnd
    | EndNow
    | Conclude
    | Show
    | SayGoodbye
    | Exit
    | ExitNow
)
