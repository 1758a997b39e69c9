"""What can happen to a run, and what can be done about it. `ending` alone says which of the one leads to which of the
other; who sees something hands over an event, and `supervisor` carries out the actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class End:
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


@dataclass(frozen=True, slots=True)
class Started:
    """The ranks of an attempt run, the first or a restarted one."""

    attempt: int
    world_size: int
    restarts_left: int
    several_nodes: bool


@dataclass(frozen=True, slots=True)
class Looked:
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


@dataclass(frozen=True, slots=True)
class WatchBroke:
    """A fault of ours kept the watcher from looking this time."""

    error: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """The job that had been still goes on."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that a person may want to know beside the verdict."""

    fact: Fact


@dataclass(frozen=True, slots=True)
class StragglersSeen:
    said: Fact


@dataclass(frozen=True, slots=True)
class Ruled:
    """The node that speaks for the job has decided for all."""

    verdict: Verdict
    stop: bool
    reason: Reason
    signal: int | None
    speaker: str
    """Its host."""
    verified: bool = True
    """It has the job's key; a word without may inform, and stops nothing."""


@dataclass(frozen=True, slots=True)
class StoppedElsewhere:
    """A signal has stopped the ranks of another node, which has said so and left; this node speaks for all."""

    host: str
    signal: int


@dataclass(frozen=True, slots=True)
class Signalled:
    number: int
    at: float
    """By the monotonic clock."""
    ends: tuple[End, ...]
    """How the ranks stood when it came."""


@dataclass(frozen=True, slots=True)
class CutShort:
    """A signal that torch itself took: the ranks are stopped, and we hear of it only now."""

    number: int


@dataclass(frozen=True, slots=True)
class ElasticStops:
    """Torch's agent is about to stop the ranks, for whatever reason; nothing has been stopped yet."""

    ends: tuple[End, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """Evidence that was asked for with `TakeEvidence`."""

    ruling: Ruling
    evidence: Evidence
    living: bool
    """Some rank of this node has not ended."""


@dataclass(frozen=True, slots=True)
class LookBroke:
    """Evidence that was asked for could not be taken, by a fault of ours or of the machine."""

    error: str


@dataclass(frozen=True, slots=True)
class SpeakerAsked:
    """Not this node looks, but the one that speaks for all; its ruling will come."""


@dataclass(frozen=True, slots=True)
class NoRuling:
    """It did not come in time."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What one `Keep` asked for is on disk, as far as the disk lets us."""


@dataclass(frozen=True, slots=True)
class RanksStopped:
    """Torch's agent has done what it was let do."""


@dataclass(frozen=True, slots=True)
class ElasticLate:
    """The time given with `SeeToTheEnd` is over."""

    living: bool


@dataclass(frozen=True, slots=True)
class Over:
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


@dataclass(frozen=True, slots=True)
class Settle:
    """Give the other ranks a moment to show whether they fail too."""


@dataclass(frozen=True, slots=True)
class TakeEvidence:
    """Answered by `Taken`, `LookBroke` or `SpeakerAsked`."""

    trigger: Trigger
    alone: bool = False
    """Without the other nodes."""


@dataclass(frozen=True, slots=True)
class AwaitRuling:
    """Answered by `NoRuling`, unless a ruling lets the ranks go before."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Evidence and verdict go to the run's folder; answered by `Kept`."""

    verdict: Verdict
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Write:
    """The verdict of another node, whose evidence lies there."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class TellNodes:
    """The other nodes get the verdict and what follows from it, where this node speaks for all."""

    verdict: Verdict
    stop: bool
    reason: Reason
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    line: Line


@dataclass(frozen=True, slots=True)
class StopRanks:
    """Torch's agent is asked to stop the ranks for good; it answers with `ElasticStops`."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Torch's agent is asked to stop the ranks and to start them again."""


@dataclass(frozen=True, slots=True)
class NoRestart:
    """Torch's agent, which is about to stop the ranks, is not to start them again."""


@dataclass(frozen=True, slots=True)
class LetGo:
    """Torch's agent may stop the ranks now."""

    hurry: bool
    """They are stuck: nobody will clean up."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Torch's agent learns of the signal."""

    number: int


@dataclass(frozen=True, slots=True)
class SeeToTheEnd:
    """Torch's agent waits for ever on a store that is frozen or cut off: `ElasticLate` comes after this time."""

    within_s: float


@dataclass(frozen=True, slots=True)
class EndNow:
    """Kill what is left of the job; answered by `Over`."""


@dataclass(frozen=True, slots=True)
class Conclude:
    """The last verdict: completed with what is known only now, and written."""

    verdict: Verdict
    notes: tuple[str | Fact, ...]


@dataclass(frozen=True, slots=True)
class Show:
    """The report of it."""


@dataclass(frozen=True, slots=True)
class SayGoodbye:
    """To the other nodes."""


@dataclass(frozen=True, slots=True)
class Exit:
    code: int


@dataclass(frozen=True, slots=True)
class ExitNow:
    """Without waiting for torch's agent."""

    code: int


Action = (
    Settle
    | TakeEvidence
    | AwaitRuling
    | Keep
    | Write
    | TellNodes
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
