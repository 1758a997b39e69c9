"""Who waits for whom: the wait-for graph, and the part of it that can never come loose."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from rankscope.diagnosis import views
from rankscope.diagnosis.timeline import COVERING, POINT_TO_POINT, SET_UP, Event, Timeline, build_timeline
from rankscope.evidence.model import Call, Evidence, Frame, RankEvidence

Kind = Literal["ended", "waiting", "elsewhere", "unknown"]

SETTLED_S = 0.4
"""A call younger than this when the evidence was taken may simply be about to return."""


_OUTSIDE = frozenset(
    {
        "nanosleep",
        "clock_nanosleep",
        "pause",
        "read",
        "readv",
        "write",
        "recvfrom",
        "recvmsg",
        "sendto",
        "sendmsg",
        "connect",
        "accept",
        "accept4",
        "wait4",
        "waitid",
        "flock",
        "fcntl",
        "open",
        "openat",
        "fsync",
        "fdatasync",
        "select",
        "pselect6",
        "epoll_wait",
        "epoll_pwait",
    }
)
"""System calls in which a thread waits for something other than a collective or its device."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The call in which a rank waits for others."""

    op: str
    group: str
    seq: int
    """The place in the group's sequence, as this rank's timeline counts; 0 where it is not known."""
    called: int
    """The same by the probe's own count of calls from Python; 0 where it is not one."""
    peer: int
    since: float
    site: tuple[Frame, ...]
    firm: bool
    """Nothing but the awaited ranks can end it: the thread stands inside, and no other thread makes collectives."""
    note: str = ""
    event: Event | None = None


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
        waited = _failed_in(seen, timeline) if failed else None
        return State(seen.rank, "ended" if waited is None else "waiting", seen, timeline, waited)
    if _stopped(seen):
        return State(seen.rank, "elsewhere", seen, timeline)  # it takes part in nothing, whatever it has entered
    wait = _find_wait(seen, timeline, evidence)
    if wait is None and _waits_unseen(seen, timeline):
        return State(seen.rank, "unknown", seen, timeline)  # it waits for somebody, but nothing tells for whom
    return State(seen.rank, "elsewhere" if wait is None else "waiting", seen, timeline, wait)


def _failed_in(seen: RankEvidence, timeline: Timeline) -> Wait | None:
    """The call whose failure ended the rank: it had been waiting there."""
    calls = seen.progress.calls if seen.progress is not None else ()
    failed = next((call for call in reversed(calls) if call.depth == 0 and call.failed), None)
    if failed is None:
        return None
    return Wait(
        op=failed.op,
        group=failed.group,
        seq=failed.seq if not timeline.recorded else 0,
        called=failed.seq,
        peer=failed.peer,
        since=failed.entered_at,
        site=failed.site,
        firm=False,
    )


def _find_wait(seen: RankEvidence, timeline: Timeline, evidence: Evidence) -> Wait | None:
    calls = seen.progress.calls if seen.progress is not None else ()
    inside = [call for call in calls if call.left_at is None and call.depth == 0]
    blocking = next((call for call in reversed(inside) if call.op != "destroy_process_group"), None)
    pending = timeline.pending()
    still = not views.moving(seen) or _spins(seen, pending)
    if blocking is not None:
        return _wait_in_call(seen, blocking, pending, still, evidence)
    if pending and still and _stands_in_torch(seen) and evidence.collected_at - pending[0].at >= SETTLED_S:
        # Issued from C++ or long ago, and awaited by a synchronisation that is no recorded call.
        return _wait_for_event(pending[0], seen, firm=views.same_stack(seen) is True)
    return _wait_by_stack(seen) if seen.progress is None else None


def _wait_by_stack(seen: RankEvidence) -> Wait | None:
    """Without the probe: the function of torch.distributed that the stack stands in. It proves nothing by itself."""
    thread = views.newest_main_thread(seen)
    if thread is None or views.same_stack(seen) is False:
        return None
    entered = [frame for frame in thread.frames if "/torch/distributed/distributed_c10d.py" in frame.file]
    frames = views.python_frames(thread.frames)
    # Still inside torch may be a collective that C++ made, in a backward pass or under DDP: it must not be blamed.
    inside_torch = bool(frames) and "/torch/" in frames[0].file and not views.moving(seen) and _stands_in_torch(seen)
    if not entered and not inside_torch:
        return None
    return Wait(
        op=entered[-1].function.rpartition(".")[2] if entered else "torch",
        group="0",
        seq=0,
        called=0,
        peer=-1,
        since=seen.stacks[0].at,
        site=tuple(frame for frame in thread.frames if frame.user),
        firm=False,
    )


def _wait_in_call(
    seen: RankEvidence, call: Call, pending: tuple[Event, ...], still: bool, evidence: Evidence
) -> Wait | None:
    if evidence.collected_at - call.entered_at < SETTLED_S:
        return None
    calls = seen.progress.calls if seen.progress is not None else ()
    if call.op in ("backward", "_broadcast_coalesced", "_verify_params_across_processes", "Work.wait"):
        if call.op == "Work.wait" and not pending:
            return _wait_for_message(seen, call, calls)
        if not pending or not still:
            return None  # at work: gradients are being computed while earlier ones travel
        return _wait_for_event(pending[0], seen, firm=_alone(seen, call.thread), site=call.site)
    # A GPU runs a rank's collectives one after another: the oldest unfinished one is what it waits for.
    queued = bool(pending) and pending[0].backend == "nccl" and call.op not in POINT_TO_POINT | SET_UP
    event = pending[0] if queued else next((e for e in reversed(pending) if e.group == call.group), None)
    if (
        call.group
        and event is None
        and not pending
        and seen.collectives
        and call.op not in POINT_TO_POINT | SET_UP | {"monitored_barrier"}
    ):
        return None  # the recorder knows no unfinished collective: the call is on its way in or out
    detail = next((inner for inner in reversed(calls) if inner.left_at is None and inner.note), None)
    return Wait(
        op=event.op if event is not None else call.op,
        group=event.group if event is not None else call.group,
        seq=event.seq if event is not None else (0 if seen.collectives else call.seq),
        called=0 if queued and event is not pending[-1] else call.seq,
        peer=call.peer,
        since=call.entered_at,
        site=call.site,
        firm=_alone(seen, call.thread) and views.same_stack(seen) is not False,
        note=detail.note if detail is not None else call.note,
        event=event,
    )


def _wait_for_event(event: Event, seen: RankEvidence, *, firm: bool, site: tuple[Frame, ...] = ()) -> Wait:
    thread = views.newest_main_thread(seen)
    standing = tuple(frame for frame in thread.frames if frame.user) if thread is not None else ()
    return Wait(
        op=event.op,
        group=event.group,
        seq=event.seq,
        called=0,
        peer=-1,
        since=event.at,
        site=site or standing or event.site,
        firm=firm and _alone(seen, thread.tid if thread is not None else seen.pid),
        event=event,
    )


def _wait_for_message(seen: RankEvidence, call: Call, calls: tuple[Call, ...]) -> Wait:
    """A wait for a message that torch does not record: the newest send or receive before it tells the peer."""
    earlier = next((c for c in reversed(calls) if c.index < call.index and c.op in POINT_TO_POINT), None)
    return Wait(
        op=earlier.op if earlier is not None else call.op,
        group=earlier.group if earlier is not None else "",
        seq=0,
        called=0,
        peer=earlier.peer if earlier is not None else -1,
        since=call.entered_at,
        site=call.site,
        firm=_alone(seen, call.thread) and views.same_stack(seen) is not False,
    )


def _alone(seen: RankEvidence, thread: int) -> bool:
    """No other thread of the rank that has ever made a collective is in the middle of anything: nobody could free the
    one that waits. The autograd thread of a GPU makes collectives too, but only for a main thread in backward."""
    calls = seen.progress.calls if seen.progress is not None else ()
    makers = {call.thread for call in calls if call.group}
    if len(makers) <= 1:
        return True
    others = makers - {thread}
    awake = {each.tid for sample in seen.stacks[-1:] for each in sample.threads if each.frames}
    return not others & awake


def _spins(seen: RankEvidence, pending: tuple[Event, ...]) -> bool:
    """A wait for the GPU burns processor time without moving: the same lines, an unfinished NCCL operation."""
    return bool(pending) and pending[0].backend == "nccl" and views.same_stack(seen) is True


def _stands_in_torch(seen: RankEvidence) -> bool:
    """The main thread stands in torch, or in a call into it that leaves no Python frame, as `.item()` does."""
    thread = views.newest_main_thread(seen)
    frames = views.python_frames(thread.frames) if thread is not None else ()
    if not frames:
        return False
    syscall = seen.processes[-1].syscall if seen.processes else None
    return (syscall is None or syscall.name not in _OUTSIDE) and ("/torch/" in frames[0].file or frames[0].user)


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
    if other.seen is not None and _stopped(other.seen):
        return False
    if wait.group and entered_nothing(other):
        return False
    if wait.seq and waiter.timeline.recorded == other.timeline.recorded:
        if other.timeline.newest.get(wait.group, 0) < wait.seq:
            return False
        theirs = other.timeline.at(wait.group, wait.seq)
        if theirs is not None and _queued_behind(theirs, other.timeline):
            return False
        if theirs is not None and wait.event is not None and theirs.signature() != wait.event.signature():
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
        if here is not None and there is not None and here.signature() != there.signature():
            return not here.done and not there.done
    return False


def _did_its_part(other: State, timeline: Timeline, wait: Wait) -> bool:
    """A root that sent its broadcast need not wait for the others, and may have ended well."""
    if other.timeline is None or other.seen is None or other.seen.exit is None or other.seen.exit.code != 0:
        return False
    theirs = other.timeline.at(wait.group, wait.seq) if other.timeline.recorded == timeline.recorded else None
    return (
        theirs is not None and theirs.done and wait.event is not None and theirs.signature() == wait.event.signature()
    )


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


def _stopped(seen: RankEvidence) -> bool:
    """By SIGSTOP or a debugger. Taking a stack traces a process for a moment: one look at that does not count."""
    states = [sample.state for sample in seen.processes[-2:]]
    return states[-1:] == ["T"] or (len(states) == 2 and all(state in "Tt" for state in states))


def just_entered(seen: RankEvidence, evidence: Evidence) -> bool:
    """In a call too young to tell anything: the rank is on its way."""
    calls = seen.progress.calls if seen.progress is not None else ()
    return any(c.left_at is None and c.depth == 0 and evidence.collected_at - c.entered_at < SETTLED_S for c in calls)


def _waits_unseen(seen: RankEvidence, timeline: Timeline) -> bool:
    """Stands in a collective of which there is no record, waits for a GPU whose queue is not known, or has an
    unfinished collective and no stack that tells whether it waits for it."""
    if not seen.stacks:
        return bool(timeline.pending())
    thread = views.newest_main_thread(seen)
    frames = views.python_frames(thread.frames) if thread is not None else ()
    inner = frames[: next((at for at, frame in enumerate(frames) if frame.user), len(frames))]
    if any("/torch/cuda/" in frame.file and frame.function == "synchronize" for frame in inner):
        return not seen.collectives and views.same_stack(seen) is True
    return seen.progress is None and any(frame.file.endswith("/distributed_c10d.py") for frame in inner)


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
