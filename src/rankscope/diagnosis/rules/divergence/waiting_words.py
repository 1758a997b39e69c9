"""How a waiting rank is spoken of."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.finding import Suspect
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.waits import State, WaitGraph
from rankscope.evidence.model import Frame


def site_of(state: State) -> tuple[Frame, ...]:
    return state.wait.site if state.wait is not None else ()


def waiting_culprit(state: State, doing: str, at: Where | None) -> Suspect:
    assert state.seen is not None
    return views.rank_culprit(state.seen, doing, at)


def standing(state: State) -> Where | None:
    if site_of(state):
        return views.where(site_of(state)[0])
    return views.current_where(state.seen) if state.seen is not None else None


def call_text(state: State) -> str:
    wait = state.wait
    if wait is None:
        return "no collective"
    number = f" {wait.seq}" if wait.seq else ""
    group = f" of {group_text(wait.group)}" if wait.group else ""
    return f"{wait.op}{number}{group}"


def group_text(group: str) -> str:
    return "the default group" if group in ("0", "") else f"group {group}"


def now_text(graph: WaitGraph) -> str:
    by_call: dict[str, list[int]] = {}
    for rank in sorted(graph.deadlocked):
        by_call.setdefault(call_text(graph.states[rank]), []).append(rank)
    return "now " + "; ".join(f"{views.ranks_text(ranks)} in {call}" for call, ranks in by_call.items())
