"""A loop of the user's own code that only tests something and sleeps: what it waits for is what it tests."""

from __future__ import annotations

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.standing import Does, InSyscall, NotRuledOut, Polls
from rankscope.diagnosis.finding import Possibility
from rankscope.diagnosis.rules.standing.life import recent_lines
from rankscope.diagnosis.rules.standing.loops import Loop, loop_at
from rankscope.diagnosis.rules.standing.outside import SLEEPS
from rankscope.diagnosis.rules.standing.stand import CALL, Stand, movement
from rankscope.diagnosis.views import current_where
from rankscope.evidence.model import Evidence, Frame, RankEvidence, Syscall


def polled_loop(rank: RankEvidence, evidence: Evidence) -> Loop | None:
    """The loop that the main thread is in, if it only tests and sleeps. In every look since the rank fell still the
    stack was in that loop, or in something that the loop's test called."""
    loops = {_polling(frames, evidence) for frames in recent_lines(rank)}
    return loops.pop() if len(loops) == 1 else None


def polls(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """Asked only of a rank that does not move."""
    loop = polled_loop(rank, evidence)
    call = rank.processes[-1].syscall if rank.processes else None
    if loop is None or (call is not None and not _pauses(call)):
        return None
    at = current_where(rank)
    doing = Polls(at, loop.test, loop.until)
    locked = loop.until == "vanishes"
    other = ("blocked-call", "holder-alive") if locked else ("lock-wait", "polled-lock")
    return Stand(
        cause="lock-wait" if locked else "blocked-call",
        at=at,
        doing=doing,
        because=(*((InSyscall(call.name, call.target or ""),) if call is not None else ()), *movement(rank)),
        fix=(Advice("left-lock-file", path="what it tests"), Advice("polling-time-limit"))
        if locked
        else (Advice("who-makes-it-true", test=loop.test or "the loop's condition"), Advice("polling-time-limit")),
        alternatives=(Possibility(other[0], "possible", NotRuledOut(other[1])),),
        summary=Does(rank.rank, doing),
        explains=CALL,
    )


def _pauses(call: Syscall) -> bool:
    """As `time.sleep` and a wait with a time limit do it; in anything else the test itself does not return."""
    return call.name in SLEEPS | {"futex"} or (call.name in {"select", "pselect6"} and not call.target)


def _polling(frames: tuple[Frame, ...], evidence: Evidence) -> Loop | None:
    """A user frame or its caller may hold the loop: a test may be a function of the user's own."""
    for frame in frames[:2]:
        loop = loop_at(frame, evidence)
        if loop is not None:
            return loop if loop.only_tests and loop.sleeps else None
    return None
