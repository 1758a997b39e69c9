"""The last verdict on a run; and what is to be said where that needs no diagnosis: it went well, somebody stopped it,
nothing is known."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.run import (
    BeforeThat,
    EarlierAttempt,
    EndedWell,
    FirstToFail,
    LauncherRaised,
    Meanwhile,
    NeverStarted,
    OnlyExitCodes,
    SaidMeanwhile,
    StartingRanks,
    StoppedByElastic,
    StoppedBySignal,
    StoppedTwice,
    StoppedUnseen,
)
from rankscope.diagnosis.finding import Possibility, Ruling, Suspect
from rankscope.diagnosis.verdict import Verdict
from rankscope.launch.events import End
from rankscope.launch.run_state import State, came_to_its_end
from rankscope.report.conclude import pronounce


def last_verdict(state: State) -> Verdict:
    """What is to be said of the whole run, now that everything has ended."""
    if came_to_its_end(state):
        return state.numbers or pronounce(ended_well(state.world_size), state.policy.lang)
    if state.found is not None and state.found.outcome != "ok":
        return state.found
    if state.cut_by is not None and not state.failed_first:
        twice = (StoppedTwice(),) if state.rushed is not None else ()
        return pronounce(stopped_unseen(state.world_size, state.cut_by, twice), state.policy.lang)
    return pronounce(undiagnosed(state.world_size, state.ends), state.policy.lang)


def notes_on(state: State, verdict: Verdict) -> tuple[str | Fact, ...]:
    """What a person may want to know beside it."""
    notes: list[str | Fact] = [EarlierAttempt(attempt, past.headline) for attempt, past in state.earlier]
    if state.numbers is not None and verdict.cause != state.numbers.cause:
        notes.append(BeforeThat(state.numbers.headline))
    if state.found is not None and verdict.headline != state.found.headline:
        notes.append(SaidMeanwhile(state.found.headline))
    return (*notes, *state.notes)


def ended_well(world_size: int) -> Ruling:
    return Ruling(outcome="ok", cause=None, certainty="proven", summary=EndedWell(world_size), world_size=world_size)


def interruption(ruling: Ruling, number: int | None) -> Ruling:
    """A person or the scheduler stopped the job. What it was stuck in, if it was, is kept as the alternative."""
    seen = None
    if ruling.cause is not None:
        victims = () if ruling.victims_told else ruling.victims
        seen = Meanwhile(ruling.summary, len(ruling.culprits), victims, ruling.victims_failed)
    return replace(
        ruling,
        outcome="interrupted",
        cause=None,
        culprits=(),
        summary=StoppedByElastic(seen) if number is None else StoppedBySignal(number, seen),
        alternatives=(Possibility(ruling.cause, ruling.certainty, seen),) if ruling.cause and seen else (),
    )


def stopped_unseen(world_size: int, number: int, because: tuple[StoppedTwice, ...] = ()) -> Ruling:
    """By a signal, and there was no last look."""
    return Ruling(
        outcome="interrupted",
        cause=None,
        certainty="proven",
        summary=StoppedBySignal(number),
        because=because,
        world_size=world_size,
    )


def undiagnosed(world_size: int, ends: Sequence[End]) -> Ruling:
    """The job ended badly and no evidence could be read: what the exit codes say, and no more."""
    failed = sorted((end for end in ends if end.failed), key=lambda end: end.at)
    if not failed:
        return Ruling(
            outcome="unknown", cause=None, certainty="possible", summary=StoppedUnseen(), world_size=world_size
        )
    first = failed[0]
    return Ruling(
        outcome="crash",
        cause="exit-code",
        certainty="possible",
        summary=FirstToFail(first.rank, first.code or 0),
        because=(OnlyExitCodes(),),
        fix=(Advice("read-output"),),
        world_size=world_size,
    )


def never_started(failure: LauncherRaised) -> Ruling:
    """The launch itself failed: rendezvous, port, address. The message is torch's."""
    low = failure.message.lower()
    if "address already in use" in low or "eaddrinuse" in low:
        cause, advice = "port-in-use", Advice("choose-port")
    elif any(text in low for text in ("resolv", "name or service", "timed out", "connect", "unreachable")):
        cause, advice = "address-unreachable", Advice("check-endpoint")
    else:
        cause, advice = "exception", Advice("read-launcher-message")
    return Ruling(
        outcome="crash",
        cause=cause,
        certainty="likely",
        summary=NeverStarted(failure.message),
        culprits=(Suspect(None, None, None, "launcher", None, StartingRanks()),),
        because=(failure,),
        fix=(advice,),
    )
