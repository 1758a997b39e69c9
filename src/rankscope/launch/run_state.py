"""What is known of a run that matters for its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Certainty, Verdict
from rankscope.launch.events import End, Reason

OnHang = Literal["auto", "stop", "report", "restart"]
OnBadNumbers = Literal["report", "stop"]
Stages = Literal["auto", "on", "off"]
Phase = Literal["running", "asked", "looking", "awaiting", "holding", "stopping", "closing", "killed", "over"]
"""running. asked: torch's agent was asked to stop the ranks. It is about to, and we are looking, awaiting the ruling of
another node, or holding it back until everything is kept. stopping: it may. closing: no rank runs any more, and we look
once more. killed: we did not wait for it. over."""


class Policy(msgspec.Struct, frozen=True):
    on_hang: OnHang = "auto"
    on_nan: OnBadNumbers = "report"
    on_corrupt: OnBadNumbers = "report"
    restart_always: bool = False
    """As torchrun does, also what will fail again."""
    lang: str = "en"
    """Of what is said."""


class State(msgspec.Struct, frozen=True):
    policy: Policy
    phase: Phase = "running"
    attempt: int = 0
    world_size: int = 0
    restarts_left: int = 0
    several_nodes: bool = False
    found: Verdict | None = None
    """What is to be said of this attempt, as far as it is known."""
    found_for: Reason | None = None
    numbers: Verdict | None = None
    """Where its numbers went bad first."""
    stopped_for: Reason | None = None
    unkept: int = 0
    """What was given out to be kept and is not on disk yet."""
    reported: Certainty | None = None
    """How certain the hang was that was told last, of a job that is still now."""
    reported_still_s: float = 0.0
    """How long the ranks of this node had been still by then."""
    told: frozenset[str] = frozenset()
    """What was told of this attempt and is not told again."""
    signal: int | None = None
    signal_at: float = 0.0
    cut_by: int | None = None
    """The signal that ended the run, here or on another node: there were ranks that had not ended well."""
    cut_at: float | None = None
    """When it came, where it came to another node."""
    failed_first: bool = False
    """A rank had failed by itself before the signal came."""
    interrupt_due: bool = False
    """Torch's agent does not know of the signal yet: it was already stopping the ranks."""
    elastic_ended: bool = False
    rushed: int | None = None
    """The signal that came second."""
    seen_to: bool = False
    last_call: bool = False
    earlier: tuple[tuple[int, Verdict], ...] = ()
    """Attempt → what ended it."""
    notes: tuple[str | Fact, ...] = ()
    ends: tuple[End, ...] = ()
    code: int = 1
    """The exit code, once the run is over."""


def all_well(ends: Sequence[End]) -> bool:
    return bool(ends) and all(end.code == 0 for end in ends)


def came_to_its_end(state: State) -> bool:
    """The run came to its own good end, whatever had been said of it before."""
    if not all_well(state.ends) or state.cut_by is not None:
        return False
    return state.stopped_for is None or not (state.several_nodes or any(end.by_launcher for end in state.ends))
