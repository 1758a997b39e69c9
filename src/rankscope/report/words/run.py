"""Words for facts about a run as a whole."""

from __future__ import annotations

import signal

from rankscope.diagnosis.facts.run import (
    BeforeThat,
    CameBack,
    CommandFailed,
    EarlierAttempt,
    EndedWell,
    EvidenceElsewhere,
    FirstToFail,
    LauncherRaised,
    LookFailed,
    Meanwhile,
    NeverStarted,
    NobodyNamed,
    OnlyExitCodes,
    Overheard,
    ProbeFailed,
    SaidMeanwhile,
    SignalCameTo,
    StartingRanks,
    StoppedByElastic,
    StoppedBySignal,
    StoppedTwice,
    StoppedUnseen,
    UnusedLosses,
)
from rankscope.report.words import headline, sentence
from rankscope.report.words.advice import ADVICE
from rankscope.report.words.phrases import ranks_text, with_victims

ADVICE.update(
    {
        "read-output": "look at the output of that rank in the run's folder",
        "choose-port": "choose another port with --master-port or --rdzv-endpoint, or end who holds it",
        "check-endpoint": "check --rdzv-endpoint or --master-addr: does the name resolve, does it answer?",
        "read-launcher-message": "see the message; it comes from torch's launcher",
    }
)


@sentence.register
def _(fact: Overheard) -> str:
    return f"{fact.host} says (not verified: the nodes share no key, see RANKSCOPE_KEY): {fact.headline.rstrip('.')}"


@sentence.register
def _(fact: EndedWell) -> str:
    return f"all {fact.ranks} ranks ended well" if fact.ranks != 1 else "the only rank ended well"


@sentence.register
def _(fact: Meanwhile) -> str:
    return with_victims(headline(fact.summary), fact.culprits, fact.victims, failed=fact.victims_failed)


@sentence.register
def _(fact: StoppedBySignal) -> str:
    return f"the job was stopped by {signal.Signals(fact.signal).name}{_at_that_moment(fact.meanwhile)}"


@sentence.register
def _(fact: StoppedByElastic) -> str:
    return f"torch's elastic agent stopped the ranks{_at_that_moment(fact.meanwhile)}"


def _at_that_moment(meanwhile: Meanwhile | None) -> str:
    return "" if meanwhile is None else f". At that moment {sentence(meanwhile)}"


@sentence.register
def _(_fact: StoppedTwice) -> str:
    return "it was stopped a second time, before the last look was done"


@sentence.register
def _(fact: FirstToFail) -> str:
    how = f"with code {fact.code}" if fact.code >= 0 else f"by {signal.Signals(-fact.code).name}"
    return f"rank {fact.rank} ended first, {how}"


@sentence.register
def _(_fact: StoppedUnseen) -> str:
    return "the ranks were stopped, and what they did before could not be read"


@sentence.register
def _(_fact: OnlyExitCodes) -> str:
    return "the evidence could not be read; only exit codes are known"


@sentence.register
def _(fact: NeverStarted) -> str:
    return f"the ranks could not be started: {fact.message}"


@sentence.register
def _(fact: LauncherRaised) -> str:
    return f"{fact.type}: {fact.message}"


@sentence.register
def _(fact: CommandFailed) -> str:
    return f"the command itself ended with code {fact.code}, after every rank had ended with 0"


@sentence.register
def _(_fact: StartingRanks) -> str:
    return "starting the ranks"


@sentence.register
def _(fact: EarlierAttempt) -> str:
    return f"attempt {fact.attempt} had ended: {fact.headline}"


@sentence.register
def _(fact: BeforeThat) -> str:
    return f"before that, {fact.headline}"


@sentence.register
def _(fact: SaidMeanwhile) -> str:
    return fact.headline


@sentence.register
def _(fact: CameBack) -> str:
    return f"the job goes on after {fact.after_s:.0f} s of stillness"


@sentence.register
def _(fact: SignalCameTo) -> str:
    return f"the signal came to the launcher on {fact.host}, and the other nodes cannot go on without its ranks"


@sentence.register
def _(fact: EvidenceElsewhere) -> str:
    return f"the evidence of all nodes lies on {fact.host}"


@sentence.register
def _(_fact: NobodyNamed) -> str:
    return "numbers went bad; not all nodes could be asked where that began, so nobody is named"


@sentence.register
def _(fact: UnusedLosses) -> str:
    times = "once" if fact.times == 1 else f"{fact.times} times"
    return (
        f"rank {fact.rank} called backward {times} on a loss that was not finite; no optimizer applied what came of it"
    )


@sentence.register
def _(fact: ProbeFailed) -> str:
    where = f" in {ranks_text(fact.ranks)}" if fact.ranks else ""
    return f"rankscope's probe failed{where}, the program did not: {fact.error}"


@sentence.register
def _(fact: LookFailed) -> str:
    return f"a look at the job failed: {fact.error}"
