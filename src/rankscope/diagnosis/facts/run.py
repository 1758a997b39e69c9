"""Facts about a run as a whole: how it ended, who stopped it, what happened beside its verdict."""

from __future__ import annotations

from rankscope.diagnosis.facts import Fact


class Overheard(Fact, frozen=True):
    """A verdict that came over the rendezvous store without the job's seal: anyone may have said it."""

    host: str
    headline: str


class EndedWell(Fact, frozen=True):
    """Every rank ended with code 0."""

    ranks: int


class Meanwhile(Fact, frozen=True):
    """What the diagnosis found at a moment that somebody else chose."""

    summary: Fact
    culprits: int
    victims: tuple[int, ...]
    victims_failed: bool


class StoppedBySignal(Fact, frozen=True):
    """A signal to the launcher stopped the job."""

    signal: int
    meanwhile: Meanwhile | None = None


class StoppedByElastic(Fact, frozen=True):
    """Torch's agent stopped ranks that had not failed: a node joined or left."""

    meanwhile: Meanwhile | None = None


class StoppedTwice(Fact, frozen=True):
    """The last look was cut short."""


class FirstToFail(Fact, frozen=True):
    """The rank that ended first, with its exit code."""

    rank: int
    code: int


class StoppedUnseen(Fact, frozen=True):
    """The ranks were stopped and nobody knows why."""


class OnlyExitCodes(Fact, frozen=True):
    """The evidence could not be read."""


class NeverStarted(Fact, frozen=True):
    """Torch could not start the ranks."""

    message: str
    """Torch's own."""


class LauncherRaised(Fact, frozen=True):
    """An error in torch's launcher ended the run."""

    type: str
    message: str


class CommandFailed(Fact, frozen=True):
    """A command that was watched ended badly, though its ranks did not."""

    code: int


class StartingRanks(Fact, frozen=True):
    """What the launcher was doing."""


# Beside the verdict.


class EarlierAttempt(Fact, frozen=True):
    """How an earlier attempt of the same run had ended."""

    attempt: int
    headline: str
    """Of the verdict on it, as it was said then."""


class BeforeThat(Fact, frozen=True):
    """Numbers had gone bad before the job ended for another reason."""

    headline: str


class SaidMeanwhile(Fact, frozen=True):
    """What was told of the job while it ran, and it went on."""

    headline: str


class CameBack(Fact, frozen=True):
    """A job that had been reported to hang came back by itself."""

    after_s: float


class SignalCameTo(Fact, frozen=True):
    """It was the launcher on another host that was told to stop."""

    host: str


class EvidenceElsewhere(Fact, frozen=True):
    """The evidence of all nodes lies on another host."""

    host: str


class NobodyNamed(Fact, frozen=True):
    """Numbers went bad, and not all nodes could be asked where that began."""


class UnusedLosses(Fact, frozen=True):
    """A rank called backward on losses that were not finite, and no optimizer applied what came of it."""

    rank: int
    times: int


class ProbeFailed(Fact, frozen=True):
    """Something inside the probe went wrong; the program itself went on."""

    ranks: tuple[int, ...]
    """Empty where a process was no rank yet."""
    error: str


class LookFailed(Fact, frozen=True):
    """A fault of ours kept us from looking at the job."""

    error: str
