"""Who waits for whom: the wait-for graph, and the part of it that can never come loose."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from rankscope.diagnosis.timeline import COVERING, POINT_TO_POINT, SET_UP, Event, Timeline, build_timeline
from rankscope.diagnosis.waiting import Wait, failed_in, find_wait, stopped, waits_unseen
from rankscope.evidence.model import Evidence, RankEvidence

Kind = Literal["ended", "waiting", "elsewhere", "unknown"]


@dataclass(frozen=True, slots=True)
class State:
    rank: int
    kind: Kind
    seen: RankEvidence | None
    timeline: Timeline | None
    wait: Wait | None = None


@dataclass(frozen=True, slots=True)
class WaitGraph:
    states: dict[int, State]
    """Every rank of the declared world, those without evidence as `unknown`."""
    edges: dict[int, frozenset[int]]
    """Rank → ranks it waits for."""
    absent: tuple[int, ...]
    """Ranks of the declared world that the launcher never started."""
    deadlocked: frozenset[int]
    """Waiting ranks that can never go on, whatever happens outside."""

    def waiting(self) -> tuple[int, ...]:
        return tuple(rank for rank, state in self.states.items() if state.kind == "waiting")

    def roots(self) -> tuple[int, ...]:
        """Ranks that others wait for, directly or not, and that wait for nobody."""
        reached: set[int] = set()
        queue = [target for rank in self.waiting() for target in self.edges.get(rank, frozenset())]
        while queue:
            rank = queue.pop()
            if rank not in reached:
                reached.add(rank)
                queue.extend(self.edges.get(rank, frozenset()))
        return tuple(sorted(rank for rank in reached if not self.edges.get(rank)))

    def waiters_of(self, rank: int) -> tuple[int, ...]:
        """Ranks that wait for it, directly or through others."""
        found: set[int] = set()
        grown = True
        while grown:
            more = {
                waiter
                for waiter, targets in self.edges.items()
                if waiter not in found and waiter != rank and targets & (found | {rank})
            }
            grown = bool(more)
            found |= more
        return tuple(sorted(found))


def build_graph(evidence: Evidence, failed: Collection[int] = ()) -> WaitGraph:
    """`failed` are ranks that ended only because a collective failed: they had been waiting."""
    states = {seen.rank: _state(seen, evidence, seen.rank in failed) for seen in evidence.ranks}
    declared = max((seen.progress.declared_world for seen in evidence.ranks if seen.progress is not None), default=0)
    for rank in range(max(evidence.world_size, declared)):
        states.setdefault(rank, State(rank=rank, kind="unknown", seen=None, timeline=None))
    states = dict(sorted(states.items()))
    absent = tuple(rank for rank in states if rank >= evidence.world_size)
    edges = {rank: _targets(state, states) for rank, state in states.items() if state.kind == "waiting"}
    return WaitGraph(states=states, edges=edges, absent=absent, deadlocked=_deadlocked(states, edges))


def innermost_knot(graph: WaitGraph) -> frozenset[int]:
    """Deadlocked ranks that all wait for each other and for no other deadlocked rank: where it began. The rest of the
    deadlocked ones only wait for these."""
    reach: dict[int, frozenset[int]] = {}

    def reachable(start: int) -> frozenset[int]:
        found: set[int] = set()
        queue = [start]
        while queue:
            for target in graph.edges[queue.pop()] & graph.deadlocked:
                if target not in found:
                    found.add(target)
                    queue.append(target)
        return frozenset(found)

    smallest = frozenset(graph.deadlocked)
    for rank in sorted(graph.deadlocked):
        if rank in smallest:
            reach[rank] = reachable(rank)
            if rank in reach[rank] and len(reach[rank]) < len(smallest):
                smallest = reach[rank]
    return smallest


def _deadlocked(states: dict[int, State], edges: dict[int, frozenset[int]]) -> frozenset[int]:
    """The largest set of firmly waiting ranks each of which waits for an ended rank or for one of the set."""
    ended = {rank for rank, state in states.items() if state.kind == "ended"}
    stuck = {rank for rank in edges if (wait := states[rank].wait) is not None and wait.firm}
    while True:
        loose = {rank for rank in stuck if not edges[rank] & (stuck | ended)}
        if not loose:
            return frozenset(stuck)
        stuck -= loose


def _state(seen: RankEvidence, evidence: Evidence, failed: bool) -> State:
    timeline = build_timeline(seen)
    if seen.exit is not None:
        waited = failed_in(seen, timeline) if failed else None
        return State(seen.rank, "ended" if waited is None else "waiting", seen, timeline, waited)
    if stopped(seen):
        return State(seen.rank, "elsewhere", seen, timeline)  # it takes part in nothing, whatever it has entered
    wait = find_wait(seen, timeline, evidence)
    if wait is None and waits_unseen(seen, timeline):
        return State(seen.rank, "unknown", seen, timeline)  # it waits for somebody, but nothing tells for whom
    return State(seen.rank, "elsewhere" if wait is None else "waiting", seen, timeline, wait)


def members_of(group: str, states: dict[int, State]) -> frozenset[int]:
    """The ranks of a process group; all ranks where nobody knows."""
    for state in states.values():
        progress = state.seen.progress if state.seen is not None else None
        for known in progress.groups if progress is not None else ():
            if known.name == group and known.ranks:
                return frozenset(known.ranks)
    return frozenset(states)


def _targets(state: State, states: dict[int, State]) -> frozenset[int]:
    wait = state.wait
    assert wait is not None
    others = frozenset(states) - {state.rank}
    if wait.op in SET_UP:
        return frozenset(rank for rank in others if not _has_set_up(states[rank], state, wait.op))
    if wait.op in POINT_TO_POINT or (wait.op == "Work.wait" and wait.peer >= 0):
        return frozenset({wait.peer} & others)
    if not wait.group:
        # A store key, or a wait of unknown origin: anyone who is not waiting may bring it.
        return frozenset(rank for rank in others if states[rank].kind != "waiting")
    members = members_of(wait.group, states) & others
    return frozenset(rank for rank in members if not _joined(states[rank], state, wait))


def _joined(other: State, waiter: State, wait: Wait) -> bool:
    """Whether the other rank has entered the awaited collective and nothing keeps it from taking part."""
    if other.kind == "unknown" or other.timeline is None or waiter.timeline is None:
        return False
    if other.kind == "ended":
        return _did_its_part(other, waiter.timeline, wait)
    if other.seen is not None and stopped(other.seen):
        return False
    if wait.group and entered_nothing(other):
        return False
    if wait.seq and waiter.timeline.recorded == other.timeline.recorded:
        if other.timeline.newest.get(wait.group, 0) < wait.seq:
            return False
        theirs = other.timeline.at(wait.group, wait.seq)
        if theirs is not None and _queued_behind(theirs, other.timeline):
            return False
        if theirs is not None and wait.event is not None and theirs.contradicts(wait.event):
            return False
        return not _out_of_step(waiter.timeline, other.timeline, wait)
    if wait.called:
        return other.timeline.called.get(wait.group, 0) >= wait.called
    return other.kind == "waiting"


def _out_of_step(mine: Timeline, theirs: Timeline, wait: Wait) -> bool:
    """Both have queued different operations for a later place: what is queued before may not complete either."""
    last = min(mine.newest.get(wait.group, 0), theirs.newest.get(wait.group, 0))
    for seq in range(wait.seq + 1, last + 1):
        here, there = mine.at(wait.group, seq), theirs.at(wait.group, seq)
        if here is not None and there is not None and here.contradicts(there):
            return not here.done and not there.done
    return False


def _did_its_part(other: State, timeline: Timeline, wait: Wait) -> bool:
    """A root that sent its broadcast need not wait for the others, and may have ended well."""
    if other.timeline is None or other.seen is None or other.seen.exit is None or other.seen.exit.code != 0:
        return False
    theirs = other.timeline.at(wait.group, wait.seq) if other.timeline.recorded == timeline.recorded else None
    return theirs is not None and theirs.done and wait.event is not None and not theirs.contradicts(wait.event)


def entered_nothing(state: State) -> bool:
    """The rank's record is whole and holds no collective: it needs no recorder to know that it has entered none."""
    progress = state.seen.progress if state.seen is not None else None
    if progress is None or state.timeline is None or state.timeline.newest:
        return False
    whole = not progress.calls or progress.calls[0].index == 0
    return whole and not any(call.op in COVERING for call in progress.calls)


def _queued_behind(event: Event, timeline: Timeline) -> bool:
    """Issued to the GPU, which has not finished an earlier collective of another group."""
    if event.done or event.backend != "nccl":
        return False
    return timeline.pending()[0].group != event.group


def _has_set_up(other: State, waiter: State, op: str) -> bool:
    progress = other.seen.progress if other.seen is not None else None
    if progress is None or other.kind == "ended":
        return False
    if op in ("init_process_group", "_store_based_barrier"):
        return progress.declared_world > 0
    mine, theirs = groups_made(waiter), groups_made(other)
    number = len(mine) - 1
    if number < 0:
        return True
    members = mine[number]
    if members not in ("", "all") and str(other.rank) not in members.split(","):
        return True  # no member: nobody waits for it
    return number < len(theirs) and theirs[number] == members


def groups_made(state: State) -> tuple[str, ...]:
    """The members of each process group that the rank has asked for, in order: all ranks must ask for the same."""
    progress = state.seen.progress if state.seen is not None else None
    calls = progress.calls if progress is not None else ()
    return tuple(call.note for call in calls if call.op in ("new_group", "split_group") and call.depth == 0)
