"""Facts about a run as a whole: how it ended, who stopped it, what happened beside its verdict."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.diagnosis.facts import Fact


@dataclass(frozen=True, slots=True)
class Overheard(Fact):
    """A verdict that came over the rendezvous store without the job's seal: anyone may have said it."""

    host: str
    headline: str


@dataclass(frozen=True, slots=True)
class EndedWell(Fact):
    """Every rank ended with code 0."""

    ranks: int


@dataclass(frozen=True, slots=True)
class Meanwhile(Fact):
    """What the diagnosis found at a moment that somebody else chose."""

    summary: Fact
    culprits: int
    victims: tuple[int, ...]
    victims_failed: bool


@dataclass(frozen=True, slots=True)
class StoppedBySignal(Fact):
    """A signal to the launcher stopped the job."""

    signal: int
    meanwhile: Meanwhile | None = None


@dataclass(frozen=True, slots=True)
class StoppedByElastic(Fact):
    """Torch's agent stopped ranks that had not failed: a node joined or left."""

    meanwhile: Meanwhile | None = None


@dataclass(frozen=True, slots=True)
class StoppedTwice(Fact):
    """The last look was cut short."""


@dataclass(frozen=True, slots=True)
class FirstToFail(Fact):
    """The rank that ended first, with its exit code."""

    rank: int
    code: int


@dataclass(frozen=True, slots=True)
class StoppedUnseen(Fact):
    """The ranks were stopped and nobody knows why."""


@dataclass(frozen=True, slots=True)
class OnlyExitCodes(Fact):
    """The evidence could not be read."""


@dataclass(frozen=True, slots=True)
class NeverStarted(Fact):
    """Torch could not start the ranks."""

    message: str
    """Torch's own."""


@dataclass(frozen=True, slots=True)
class LauncherRaised(Fact):
    """An error in torch's launcher ended the run."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class CommandFailed(Fact):
    """A command that was watched ended badly, though its ranks did not."""

    code: int


@dataclass(frozen=True, slots=True)
class StartingRanks(Fact):
    """What the launcher was doing."""


# Beside the verdict.


@dataclass(frozen=True, slots=True)
class EarlierAttempt(Fact):
    """How an earlier attempt of the same run had ended."""

    attempt: int
    headline: str
    """Of the verdict on it, as it was said then."""


@dataclass(frozen=True, slots=True)
class BeforeThat(Fact):
    """Numbers had gone bad before the job ended for another reason."""

    headline: str


@dataclass(frozen=True, slots=True)
class SaidMeanwhile(Fact):
    """What was told of the job while it ran, and it went on."""

    headline: str


@dataclass(frozen=True, slots=True)
class CameBack(Fact):
    """A job that had been reported to hang came back by itself."""

    after_s: float


@dataclass(frozen=True, slots=True)
class EvidenceElsewhere(Fact):
    """The evidence of all nodes lies on another host."""

    host: str


@dataclass(frozen=True, slots=True)
class NobodyNamed(Fact):
    """Numbers went bad, and not all nodes could be asked where that began."""


@dataclass(frozen=True, slots=True)
class UnusedLosses(Fact):
    """A rank called backward on losses that were not finite, and no optimizer applied what came of it."""

    rank: int
    times: int


@dataclass(frozen=True, slots=True)
class ProbeFailed(Fact):
    """Something inside the probe went wrong; the program itself went on."""

    ranks: tuple[int, ...]
    """Empty where a process was no rank yet."""
    error: str


@dataclass(frozen=True, slots=True)
class LookFailed(Fact):
    """A fault of ours kept us from looking at the job."""

    error: str
