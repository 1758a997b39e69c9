"""How a rank that waits in a send or receive is told of."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.finding import Suspect
from rankscope.diagnosis.waits import State


def message_line(state: State) -> str:
    assert state.wait is not None
    at = views.place(views.where(state.wait.site[0])) if state.wait.site else views.NO_LINE
    return f"rank {state.rank} is in {_message(state)} at {at}"


def message_culprit(state: State) -> Suspect:
    assert state.seen is not None
    assert state.wait is not None
    at = views.where(state.wait.site[0]) if state.wait.site else None
    return views.rank_culprit(state.seen, f"in {_message(state)}", at)


def _message(state: State) -> str:
    assert state.wait is not None
    if state.wait.candidates:
        return "a wait for one of several messages"
    return state.wait.op if state.wait.peer < 0 else f"{state.wait.op} with rank {state.wait.peer}"
