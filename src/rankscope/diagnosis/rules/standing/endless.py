"""A rank that is busy in one loop of the user's code and completes nothing, far beyond its own rhythm."""

from __future__ import annotations

from itertools import pairwise

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.standing import BeyondRhythm, Does, LoopCannotEnd, Loops, NotRuledOut
from rankscope.diagnosis.finding import Possibility
from rankscope.diagnosis.rules.standing.loops import Loop, loops_at
from rankscope.diagnosis.rules.standing.stand import Stand, movement
from rankscope.diagnosis.source.reader import Branch, CodeReader
from rankscope.diagnosis.views import LIFE_CPU_SHARE, cpu_share, current_where, main_thread
from rankscope.evidence.model import Evidence, Frame, RankEvidence

_TURNS_BEYOND = 20
"""Longest turns of the rank's own work that must have passed without anything noted."""
GIVEN_UP = 1.2
"""Thresholds after which such a loop is called a hang and no longer slow: a second look has found it there too."""
_LEAST_TURNS = 3
_LEAST_S = 30.0
_LEAST_SAMPLES = 2


def endless_loop(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """Said only where it can be told from long work: nothing in the loop can end it, or the loop is part of every turn
    of the job's own work, which never took nearly as long."""
    loop = busy_loop(rank, evidence)
    quiet = _quiet_s(rank, evidence)
    if loop is None or quiet is None or quiet < (evidence.stall_after_s or _LEAST_S):
        return None
    proof = _proof(rank, loop, quiet, evidence)
    if proof is None:
        return None
    at = current_where(rank)
    doing = Loops(at, at.function if at is not None else "", loop.first, quiet)
    return Stand(
        cause="endless-loop",
        at=at,
        doing=doing,
        because=(proof, *movement(rank)),
        fix=(Advice("bound-the-loop", line=loop.first), Advice("look-again")),
        alternatives=(Possibility("slow-rank", "possible", NotRuledOut("long-work")),),
        summary=Does(rank.rank, doing),
        certainty="likely",
        outcome="hang" if quiet >= GIVEN_UP * (evidence.stall_after_s or _LEAST_S) else "slow",
    )


def may_be_endless(rank: RankEvidence, evidence: Evidence) -> bool:
    """Far beyond its own rhythm in one loop, which may yet be long work that is done only now and then."""
    loop, quiet, longest = busy_loop(rank, evidence), _quiet_s(rank, evidence), longest_turn(rank)
    if loop is None or quiet is None or longest is None:
        return False
    return quiet >= max(_TURNS_BEYOND * longest, evidence.stall_after_s or _LEAST_S)


def busy_loop(rank: RankEvidence, evidence: Evidence) -> Loop | None:
    """The innermost loop in which every sample since the last progress found the main thread, while it computed."""
    share = cpu_share(rank.processes)
    samples = [thread for sample in (*rank.earlier_stacks, *rank.stacks) if (thread := main_thread(sample)) is not None]
    if share is None or share < LIFE_CPU_SHARE or len(samples) < _LEAST_SAMPLES:
        return None
    inside = [_loops_of(tuple(frame for frame in thread.frames if frame.user), evidence) for thread in samples]
    return next((loop for loop in inside[-1] if all(loop in loops for loops in inside[:-1])), None)


def longest_turn(rank: RankEvidence) -> float | None:
    """The longest time between two visits of one place that the rank came back to again and again; None before."""
    visits: dict[tuple[str, int], list[float]] = {}
    for call in rank.progress.calls if rank.progress is not None else ():
        if call.depth == 0 and call.site:
            visits.setdefault((call.site[0].file, call.site[0].line), []).append(call.entered_at)
    turns = [
        later - earlier
        for times in visits.values()
        if len(times) > _LEAST_TURNS
        for earlier, later in pairwise(times[1:])  # the first turn sets things up
    ]
    return max(turns, default=None)


def _proof(rank: RankEvidence, loop: Loop, quiet: float, evidence: Evidence) -> Fact | None:
    if loop.endless:
        return LoopCannotEnd(loop.test, loop.first)
    longest = longest_turn(rank)
    if longest is None or quiet < _TURNS_BEYOND * longest or not _in_every_turn(rank, loop, evidence):
        return None
    return BeyondRhythm(quiet, longest, every_turn=True, samples=len(rank.earlier_stacks) + len(rank.stacks))


def _in_every_turn(rank: RankEvidence, loop: Loop, evidence: Evidence) -> bool:
    """The way from the job's own loop to this one depends on no condition, or on one that let the rank through turn by
    turn: every turn so far went through it.

    An evaluation that is done now and then lies behind another condition, or after the job's loop.
    """
    thread = main_thread(rank.stacks[-1])
    code = CodeReader(evidence)
    held = False
    for frame in (frame for frame in thread.frames if frame.user) if thread is not None else ():
        held = held or _holds(loop, frame)
        if not held:
            continue
        turn = next((each for each in loops_at(frame, evidence) if each != loop and _turned(rank, each)), None)
        conditional = any(_on_the_way(branch.line, frame, loop, turn) for branch in _branches(code, frame))
        if conditional and not _came_by(rank, frame):
            return False
        if turn is not None:
            return True
    return False


def _branches(code: CodeReader, frame: Frame) -> tuple[Branch, ...]:
    around = code.around(frame)
    return (*around.guards, *around.passes)


def _on_the_way(line: int, frame: Frame, loop: Loop, turn: Loop | None) -> bool:
    """A condition within the job's loop and before the one that does not end."""
    return (turn is None or line >= turn.first) and not (_holds(loop, frame) and line >= loop.first)


def _turned(rank: RankEvidence, turn: Loop) -> bool:
    """The rank made calls from within this loop, again and again."""
    calls = rank.progress.calls if rank.progress is not None else ()
    inside = [call for call in calls if call.depth == 0 and any(_holds(turn, frame) for frame in call.site)]
    return len({call.entered_at for call in inside}) > _LEAST_TURNS


def _came_by(rank: RankEvidence, frame: Frame) -> bool:
    """The rank made calls from this very line, again and again, up to the last ones."""
    calls = [call for call in rank.progress.calls if call.depth == 0] if rank.progress is not None else []
    made = [any((f.file, f.line) == (frame.file, frame.line) for f in call.site) for call in calls]
    return sum(made) > _LEAST_TURNS and any(made[-_LEAST_TURNS:])


def _loops_of(frames: tuple[Frame, ...], evidence: Evidence) -> list[Loop]:
    return [loop for frame in frames for loop in loops_at(frame, evidence)]


def _holds(loop: Loop, frame: Frame) -> bool:
    return frame.file == loop.file and loop.first <= frame.line <= loop.last


def _quiet_s(rank: RankEvidence, evidence: Evidence) -> float | None:
    """Since the rank noted anything: a call, a step, a batch, a stage."""
    return None if rank.progress is None else evidence.collected_at - rank.progress.changed_at
