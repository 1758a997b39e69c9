"""Who waits for whom: the wait-for graph, and the part of it that can never come loose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.rank_wait import LEAVING, Wait, failed_in, find_wait, stopped, waits_unseen
from rankscope.diagnosis.timeline import (
    COVERING,
    NO_EVENTS,
    POINT_TO_POINT,
    SET_UP,
    Event,
    Events,
    Known,
    Message,
    Timeline,
    build_timeline,
)
from rankscope.evidence.model import Evidence, RankEvidence

_T = TypeVar("_T")
Kind = Literal["ended", "waiting", "elsewhere", "unknown"]


class State(msgspec.Struct, frozen=True):
    rank: int
    kind: Kind
    seen: RankEvidence | None
    timeline: Timeline | None
    wait: Wait | None = None

    def of(self, group: str) -> Events:
        """Its collectives of the group, as far as they are known."""
        return NO_EVENTS if self.timeline is None else self.timeline.of(group)


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
    found: dict[tuple[object, str], Any] = field(default_factory=dict, repr=False, compare=False)
    """What `once` has found."""

    def once(self, find: Callable[[str, dict[int, State]], _T], group: str) -> _T:
        """What a search finds in a group's sequences; several rules ask for the same one."""
        if (find, group) not in self.found:
            self.found[find, group] = find(group, self.states)
        found: _T = self.found[find, group]
        return found

    def waiting(self) -> tuple[int, ...]:
        return tuple(rank for rank, state in self.states.items() if state.kind == "waiting")

    def roots(self) -> tuple[int, ...]:
        """Ranks that others wait for, directly or not, and that wait for nobody."""
        reached: set[int] = set()
        for targets in self._distinct(self.waiting()):
            reached |= targets
        return tuple(sorted(rank for rank in reached if not self.edges.get(rank)))

    def waiters_of(self, rank: int) -> tuple[int, ...]:
        """Ranks that wait for it, directly or through others."""
        waiters: dict[int, list[int]] = {}
        for waiter, targets in self.edges.items():
            waiters.setdefault(id(targets), []).append(waiter)
        unreached = self._distinct(self.edges)
        found = {rank}
        while True:
            reached = [targets for targets in unreached if not targets.isdisjoint(found)]
            if not reached:
                return tuple(sorted(found - {rank}))
            unreached = [targets for targets in unreached if targets.isdisjoint(found)]
            for targets in reached:
                found.update(waiters[id(targets)])

    def _distinct(self, ranks: Iterable[int]) -> list[frozenset[int]]:
        """The sets of awaited ranks, each once: those who wait in one collective share one."""
        return list({id(targets): targets for rank in ranks if (targets := self.edges.get(rank))}.values())


def build_graph(evidence: Evidence, failed: Collection[int] = ()) -> WaitGraph:
    """`failed` are ranks that ended only because a collective failed: they had been waiting."""
    known = Known()
    states = {seen.rank: _state(seen, evidence, seen.rank in failed, known) for seen in evidence.ranks}
    declared = max((seen.progress.declared_world for seen in evidence.ranks if seen.progress is not None), default=0)
    for rank in range(max(evidence.world_size, declared)):
        states.setdefault(rank, State(rank=rank, kind="unknown", seen=None, timeline=None))
    states = dict(sorted(states.items()))
    absent = tuple(rank for rank in states if rank >= evidence.world_size)
    edges = _edges(states)
    return WaitGraph(states=states, edges=edges, absent=absent, deadlocked=_deadlocked(states, edges, evidence))


def innermost_knot(graph: WaitGraph) -> frozenset[int]:
    """Deadlocked ranks that all wait for each other and for no other deadlocked rank: where it began. The rest of the
    deadlocked ones only wait for these."""
    reach: dict[int, frozenset[int]] = {}
    smallest = frozenset(graph.deadlocked)
    waiters: dict[int, list[int]] | None = None
    known: set[int] = set()
    """Ranks that reach the very same ones as a rank before them: all that wait for it and are reached by it."""
    for rank in sorted(graph.deadlocked):
        if rank not in smallest or rank in known:
            continue
        targets = graph.edges[rank]
        if id(targets) not in reach:
            reach[id(targets)] = _reachable(targets, graph)
        reached = reach[id(targets)]
        if rank not in reached:
            continue
        if len(reached) < len(smallest):
            smallest = reached
        waiters = _waiters(graph) if waiters is None else waiters
        known |= _waiting_for(rank, reached, waiters)
    return smallest


def _waiters(graph: WaitGraph) -> dict[int, list[int]]:
    """Deadlocked rank → the deadlocked ranks that wait for it directly."""
    found: dict[int, list[int]] = {}
    for rank in graph.deadlocked:
        for target in graph.edges[rank] & graph.deadlocked:
            found.setdefault(target, []).append(rank)
    return found


def _waiting_for(rank: int, among: frozenset[int], waiters: dict[int, list[int]]) -> set[int]:
    """Those of them who wait for the rank, directly or through others."""
    found = {rank}
    queue = [rank]
    while queue:
        for waiter in waiters.get(queue.pop(), ()):
            if waiter in among and waiter not in found:
                found.add(waiter)
                queue.append(waiter)
    return found


def _reachable(targets: frozenset[int], graph: WaitGraph) -> frozenset[int]:
    """Deadlocked ranks that one waits for, directly or through others, who waits for `targets`."""
    found: set[int] = set()
    queue = [targets]
    followed = {id(targets)}
    while queue:
        more = (queue.pop() & graph.deadlocked) - found
        found |= more
        for rank in more:
            further = graph.edges[rank]
            if id(further) not in followed:
                followed.add(id(further))
                queue.append(further)
    return frozenset(found)


def _deadlocked(states: dict[int, State], edges: dict[int, frozenset[int]], evidence: Evidence) -> frozenset[int]:
    """The largest set of firmly waiting ranks each of which waits for an ended rank or for one of the set."""
    ended = {rank for rank, state in states.items() if state.kind == "ended"}
    waits = {rank: wait for rank in edges if (wait := states[rank].wait) is not None and wait.firm}
    stuck = set(waits)
    patience = evidence.stall_after_s or _PATIENCE_S
    long_since = {rank for rank, wait in waits.items() if evidence.collected_at - wait.since >= patience}
    while True:
        hopeless = stuck | ended
        free = {id(targets): targets.isdisjoint(hopeless) for targets in edges.values()}
        loose = {
            rank
            for rank in stuck
            if free[id(edges[rank])] or _may_come(states[rank], edges[rank], hopeless, states, rank in long_since)
        }
        if not loose:
            return frozenset(stuck)
        stuck -= loose


_IDLE = ("/threading.py", "/queue.py")
"""Where a thread stands that waits for another one of its process."""
_PATIENCE_S = 30.0


def _may_come(
    state: State, targets: frozenset[int], hopeless: set[int], states: dict[int, State], long_since: bool
) -> bool:
    """What the rank really waits for may be a message, or another collective, that can still come."""
    wait = state.wait
    if wait is None:
        return False
    if wait.event is not None and wait.event.messages:
        # A GPU knows no tags: messages of two ranks meet in their order, and one that nobody makes never comes.
        if not _unmet(state, wait.event, states):
            return True
        return not {rank for rank in targets & hopeless if long_since or not _other_thread_works(states[rank])}
    if wait.op in POINT_TO_POINT:
        halves = [states[rank] for rank in targets if _halves(state, states[rank])]
        if halves and (not long_since or any(views.on_its_way(each.seen) for each in (state, *halves))):
            return True  # a large message on a slow network: tags and bytes on their way are not known
        # A message concerns two ranks alone, and any thread of the other may make its half of it: it is given time.
        bound = {rank for rank in targets & hopeless if long_since or not _other_thread_works(states[rank])}
        return not targets <= bound if wait.candidates else not bound
    awaited = (_targets_of(event, state, states) for event in wait.instead)
    return any(ranks and ranks.isdisjoint(hopeless) for ranks in awaited)


def _halves(one: State, other: State) -> bool:
    """One sends to the other, who receives from it."""
    if one.wait is None or other.wait is None or one.wait.group != other.wait.group:
        return False
    ways = {"send" in one.wait.op, "send" in other.wait.op}
    meets = other.wait.peer == one.rank or one.rank in other.wait.candidates
    return len(ways) == 2 and other.wait.op in POINT_TO_POINT and meets


def _other_thread_works(state: State) -> bool:
    """A thread of the user's own, beside the main one, is in the middle of something and not idle itself."""
    if state.kind == "ended" or state.seen is None or not state.seen.stacks:
        return False
    threads = [thread for thread in state.seen.stacks[-1].threads if not thread.main]
    return any(
        any(frame.user for frame in thread.frames) and not thread.frames[0].file.endswith(_IDLE) for thread in threads
    )


def _targets_of(event: Event, state: State, states: dict[int, State]) -> frozenset[int]:
    """The ranks that have not come to this collective."""
    assert state.wait is not None
    wait = replace(state.wait, op=event.op, group=event.group, seq=event.seq, called=0, peer=-1, event=event)
    return _targets(state, wait, states, members_of(event.group, states)) - {state.rank}


def _state(seen: RankEvidence, evidence: Evidence, failed: bool, known: Known) -> State:
    timeline = build_timeline(seen, known)
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
    """The ranks of a process group; where nobody names them, those that use it, and all for the default group."""
    for state in states.values():
        seen = state.seen
        if seen is None:
            continue
        for known in (*(seen.progress.groups if seen.progress is not None else ()), *seen.groups):
            if known.name == group and known.ranks:
                return frozenset(known.ranks)
    if group not in ("0", "") and all(state.seen is None or state.seen.progress is None for state in states.values()):
        # From dumps alone. Whoever has never used a group may well be no member of it.
        users = (
            rank for rank, state in states.items() if state.timeline is not None and group in state.timeline.newest
        )
        return frozenset(users)
    return frozenset(states)


def _edges(states: dict[int, State]) -> dict[int, frozenset[int]]:
    """Who waits for whom. Ranks that wait in one collective share one set: the work grows with the collectives that
    are waited in, not with the pairs of ranks."""
    edges: dict[int, frozenset[int]] = {}
    shared: dict[object, frozenset[int]] = {}
    members: dict[str, frozenset[int]] = {}
    for rank, state in states.items():
        wait = state.wait
        if state.kind != "waiting" or wait is None:
            continue
        key = _awaits(state, wait)
        if key not in shared:
            if wait.group and wait.group not in members:
                members[wait.group] = members_of(wait.group, states)
            shared[key] = _targets(state, wait, states, members.get(wait.group, frozenset()))
        targets = shared[key]
        for event in wait.instead:
            targets = targets | _targets_of(event, state, states)
        edges[rank] = targets if rank not in targets else targets - {rank}
    return edges


def _awaits(state: State, wait: Wait) -> object:
    """Equal for ranks that wait for the same ranks."""
    if behind_its_own_work(wait):
        return "its own GPU"
    if wait.op == LEAVING:
        return LEAVING
    if wait.op in SET_UP:
        return wait.op, groups_made(state)
    if wait.event is not None and wait.event.messages:
        return "message", state.rank
    if wait.op in POINT_TO_POINT or (wait.op == "Work.wait" and wait.peer >= 0):
        return "message", wait.peer, wait.candidates
    if not wait.group or state.timeline is None:
        return "anyone", wait.group, state.rank if wait.group else -1
    timeline = state.timeline
    signature = wait.event.signature() if wait.event is not None else None
    later = timeline.after(wait.group, wait.seq) if wait.seq else ()
    queued = tuple((event.seq, event.signature(), event.done) for event in later)
    return wait.group, wait.seq, wait.called, signature, timeline.recorded, queued


def _targets(state: State, wait: Wait, states: dict[int, State], members: frozenset[int]) -> frozenset[int]:
    """The ranks that have not come to what this one waits in; itself perhaps among them."""
    if behind_its_own_work(wait):
        return frozenset()
    if wait.op == LEAVING:
        return frozenset(rank for rank, other in states.items() if other.kind != "ended" and not _leaves(other))
    if wait.op in SET_UP:
        return frozenset(rank for rank in states if not _has_set_up(states[rank], state, wait.op))
    if wait.event is not None and wait.event.messages:
        return _unmet(state, wait.event, states) or frozenset((wait.candidates or {wait.peer}) & states.keys())
    if wait.op in POINT_TO_POINT or (wait.op == "Work.wait" and wait.peer >= 0):
        return frozenset((wait.candidates or {wait.peer}) & states.keys())
    if not wait.group:
        # A store key, or a wait of unknown origin: anyone who is not waiting may bring it.
        return frozenset(rank for rank in states if states[rank].kind != "waiting")
    return frozenset(rank for rank in members & states.keys() if not _joined(states[rank], state, wait))


def behind_its_own_work(wait: Wait) -> bool:
    """The GPU has not even begun the oldest operation that it was given: kernels of the rank itself come before it, and
    no other rank can hold those up."""
    return wait.event is not None and wait.event.started is False


def _leaves(state: State) -> bool:
    return state.wait is not None and state.wait.op == LEAVING


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
    for here in mine.after(wait.group, wait.seq):
        there = theirs.at(wait.group, here.seq)
        if there is not None and here.contradicts(there):
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
    """Issued to the GPU, which has not come to it: it has not begun it, or not finished what was issued before."""
    if event.done or event.backend != "nccl":
        return False
    if event.started is not None:
        return not event.started
    first = timeline.queue()[0]
    if first.messages and first != event:
        return first.awaited_at is not None and first.awaited_at <= event.at
    return first != event


def _unmet(state: State, event: Event, states: dict[int, State]) -> frozenset[int]:
    """The ranks whose halves of these messages have not come, by their own records. One that cannot be counted is not
    among them, unless its record shows that its GPU stands elsewhere."""
    if state.timeline is None:
        return frozenset()
    return frozenset(
        message.peer
        for message in event.messages
        if message.peer in states and not _met(message, event, state.timeline, states[message.peer])
    )


def _met(message: Message, event: Event, mine: Timeline, peer: State) -> bool:
    theirs = peer.timeline
    if theirs is None or peer.kind == "unknown":
        return True
    half = Message(not message.sends, mine.rank)
    if mine.whole and theirs.whole:
        wanted = _count(mine.messages, message, event.group, until=event.at)
        made = [each for each in theirs.messages if each.group == event.group for part in each.messages if part == half]
        return len(made) >= wanted and not _queued_behind(made[wanted - 1], theirs)
    if peer.kind == "ended":
        return False
    return any(half in each.messages for each in theirs.messages if not each.done and not _queued_behind(each, theirs))


def _count(messages: Iterable[Event], message: Message, group: str, until: float) -> int:
    return sum(each.messages.count(message) for each in messages if each.group == group and each.at <= until)


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
