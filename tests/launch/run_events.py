"""Events of made-up runs, short to write."""

from __future__ import annotations

from typing import Any

from rankscope.diagnosis.facts.numbers import KeptWaiting
from rankscope.diagnosis.facts.run import CommandFailed, FirstToFail, LauncherRaised, NeverStarted
from rankscope.diagnosis.finding import Ruling, Suspect
from rankscope.diagnosis.verdict import Certainty, Outcome, Verdict
from rankscope.evidence.model import Evidence, RankEvidence
from rankscope.launch import events as on
from rankscope.launch.events import End
from rankscope.report.conclude import pronounce

WORLD = 2


def evidence(trigger: str = "still", *, attempt: int = 0, ranks: int = WORLD) -> Evidence:
    seen = tuple(RankEvidence(rank, rank, "node", 100 + rank, 0.0) for rank in range(ranks))
    return Evidence(1, 10.0, 0.0, trigger, WORLD, seen, attempt=attempt)


def ruling(outcome: Outcome, certainty: Certainty = "proven", cause: str | None = "stalled", rank: int = 1) -> Ruling:
    culprit = Suspect(rank, "node", 100 + rank, "rank", None, NeverStarted("standing"))
    return Ruling(
        outcome=outcome,
        cause=None if outcome == "ok" else cause,
        certainty=certainty,
        summary=FirstToFail(rank, 3),
        culprits=() if outcome == "ok" else (culprit,),
        world_size=WORLD,
    )


def verdict(outcome: Outcome, certainty: Certainty = "proven", **more: Any) -> Verdict:
    return pronounce(ruling(outcome, certainty, **more))


def hang(certainty: Certainty, *, attempt: int = 0, still_s: float = 40.0) -> on.Looked:
    return on.Looked(ruling("hang", certainty), evidence(attempt=attempt), still_s, 30.0)


def looked(outcome: Outcome, certainty: Certainty = "proven", trigger: str = "still", **more: Any) -> on.Looked:
    return on.Looked(ruling(outcome, certainty), evidence(trigger), 40.0, 30.0, **more)


def taken(outcome: Outcome, trigger: str = "failure", *, living: bool = True) -> on.Taken:
    return on.Taken(ruling(outcome), evidence(trigger), living)


def started(attempt: int = 0, *, restarts_left: int = 0, several: bool = False) -> on.Started:
    return on.Started(attempt, WORLD, restarts_left, several)


def ends(*codes: int | None, by_launcher: bool = False) -> tuple[End, ...]:
    return tuple(End(rank, code, 5.0 + rank, by_launcher and code is not None) for rank, code in enumerate(codes))


ALIVE = ends(None, None)
WELL = ends(0, 0)
FAILED = ends(None, 3)
STOPPED = ends(-15, -15, by_launcher=True)


def ruled(outcome: Outcome, reason: on.Reason, *, stop: bool = True, signal: int | None = None) -> on.Ruled:
    return on.Ruled(verdict(outcome), stop, reason, signal, "other")


EVENTS: tuple[on.Event, ...] = (
    on.StoppedElsewhere("other", 2),
    on.StoppedElsewhere("other", 2, 3.0),
    started(),
    started(1, restarts_left=1),
    started(several=True),
    hang("proven"),
    hang("likely"),
    hang("possible"),
    hang("proven", attempt=7),
    looked("crash"),
    looked("crash", elsewhere=True),
    looked("slow"),
    looked("ok"),
    looked("unknown"),
    looked("nan"),
    looked("corrupt"),
    looked("hang", trigger="non-finite"),
    on.Looked(ruling("nan"), evidence("non-finite", ranks=1)),
    on.WatchBroke("oops"),
    on.Recovered(12.0),
    on.Noted(CommandFailed(3)),
    on.StragglersSeen(KeptWaiting((1,), (0,), 14.2, 0.31, 1.9, "data", None)),
    ruled("hang", "hang"),
    ruled("hang", "hang", stop=False),
    ruled("crash", "failure"),
    ruled("nan", "numbers", stop=False),
    ruled("corrupt", "numbers"),
    ruled("interrupted", "signal", signal=15),
    ruled("ok", "failure"),
    on.Signalled(15, 100.0, ALIVE),
    on.Signalled(2, 200.0, FAILED),
    on.Signalled(15, 300.0, WELL),
    on.CutShort(15),
    on.ElasticEnded(),
    on.ElasticStops(()),
    on.ElasticStops(ALIVE),
    on.ElasticStops(FAILED),
    on.ElasticStops(WELL),
    taken("crash"),
    taken("ok"),
    taken("ok", "interrupt"),
    taken("hang", "interrupt"),
    taken("nan", "end"),
    on.LookBroke("oops"),
    on.SpeakerAsked(),
    on.NoRuling(),
    on.Kept(),
    on.RanksStopped(),
    on.ElasticLate(living=True),
    on.ElasticLate(living=False),
    on.Over(WELL),
    on.Over(WELL, suspected=True),
    on.Over(FAILED),
    on.Over(STOPPED),
    on.Over((), failure=LauncherRaised("OSError", "address already in use")),
)
"""At least one of every kind."""
