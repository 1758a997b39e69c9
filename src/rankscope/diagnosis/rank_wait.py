"""What one rank waits in: read from its calls, its recorder, its stack and its processor time."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.device import stands_in_device_wait
from rankscope.diagnosis.timeline import BEGUN, POINT_TO_POINT, SET_UP, Event, Timeline
from rankscope.evidence.model import Call, Evidence, Frame, RankEvidence
from rankscope.evidence.unrecorded import empty_record

LEAVING = "destroy_process_group"
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


_UNDER_WAY = 32
"""So many of the newest messages begun without waiting may be the one that a rank waits for now."""


class Wait(msgspec.Struct, frozen=True):
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
    candidates: frozenset[int] = frozenset()
    """Where several messages are under way and nothing tells for which one it waits: the ranks it may wait for."""
    instead: tuple[Event, ...] = ()
    """Other unfinished collectives, any of which may be the one that it waits for."""


def find_wait(seen: RankEvidence, timeline: Timeline, evidence: Evidence) -> Wait | None:
    calls = seen.progress.calls if seen.progress is not None else ()
    inside = [call for call in calls if call.left_at is None and call.depth == 0]
    blocking = next((call for call in reversed(inside) if call.op != LEAVING), None)
    pending = _under_way(timeline)
    still = not views.moving(seen) or _spins(seen, pending)
    if blocking is not None:
        return _wait_in_call(seen, blocking, pending, still, evidence)
    leaving = next((call for call in inside if leaves_all_groups(call)), None)
    if leaving is not None and not pending and evidence.collected_at - leaving.entered_at >= SETTLED_S:
        return Wait(leaving.op, "", 0, 0, -1, leaving.entered_at, leaving.site, firm=True)
    if pending and still and _stands_in_torch(seen) and evidence.collected_at - pending[0].at >= SETTLED_S:
        # Issued from C++ or long ago, and awaited by a synchronisation that is no recorded call.
        wait = _wait_for_event(pending[0], seen, firm=views.same_stack(seen) is True)
        return replace(wait, instead=_others_under_way(pending))
    if seen.progress is None and recorded_only(seen):
        return _wait_by_record(pending)
    return _wait_by_stack(seen) if seen.progress is None else None


def leaves_all_groups(call: Call) -> bool:
    """From there the rank comes to no collective of its groups any more, whatever it waits for in it."""
    return call.op == LEAVING and call.note == "all" and call.left_at is None


def recorded_only(seen: RankEvidence) -> bool:
    """Nothing is known of the rank but torch's flight record, as from a dump: no stack, no process."""
    return seen.exit is None and not seen.stacks and not seen.processes and seen.progress is None


def _under_way(timeline: Timeline) -> tuple[Event, ...]:
    """What is not finished, oldest first. Messages count where a GPU does them, one after another with the rest."""
    queue = timeline.queue()
    return queue if queue and queue[0].backend == "nccl" else timeline.pending()


def _wait_by_record(pending: tuple[Event, ...]) -> Wait | None:
    """The oldest operation of the record that is not finished: what was queued after it has not taken place."""
    if not pending:
        return None
    event = pending[0]
    wait = Wait(event.op, event.group, event.seq, 0, -1, event.at, event.site, firm=True, event=event)
    return _with_peers(wait, event)


def _with_peers(wait: Wait, event: Event) -> Wait:
    """Of a message, or a batch of them: the ranks it is with."""
    peers = frozenset(message.peer for message in event.messages)
    if not peers or -1 in peers:
        return wait
    return replace(
        wait,
        peer=next(iter(peers)) if len(peers) == 1 else -1,
        candidates=peers if len(peers) > 1 else frozenset(),
    )


def failed_in(seen: RankEvidence, timeline: Timeline) -> Wait | None:
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


def _wait_by_stack(seen: RankEvidence) -> Wait | None:
    """Without the probe: the function of torch.distributed that the stack stands in. It proves nothing by itself."""
    thread = views.newest_main_thread(seen)
    if thread is None or views.same_stack(seen) is False or views.works_through(seen):
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
        if call.op == "backward" and still and empty_record(seen) and _stands_in_torch(seen):
            return _wait_unrecorded(call, calls)
        if not pending or not still:
            return None  # at work: gradients are being computed while earlier ones travel
        wait = _wait_for_event(pending[0], seen, firm=_alone(seen, call.thread), site=call.site)
        return replace(wait, instead=_others_under_way(pending)) if call.op == "Work.wait" else wait
    # A GPU runs a rank's collectives one after another: the oldest unfinished one is what it waits for.
    queued = bool(pending) and pending[0].backend == "nccl" and call.op not in POINT_TO_POINT | SET_UP
    if queued and pending[0].messages:
        return _wait_for_event(pending[0], seen, firm=_alone(seen, call.thread))
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


def _wait_unrecorded(call: Call, calls: tuple[Call, ...]) -> Wait:
    """A backward pass that stands still where no recorder tells of DDP's reductions. It proves nothing by itself."""
    group = next((other.group for other in reversed(calls) if other.group), "0")
    return Wait("all_reduce", group, 0, 0, -1, call.entered_at, call.site, firm=False)


def _wait_for_event(event: Event, seen: RankEvidence, *, firm: bool, site: tuple[Frame, ...] = ()) -> Wait:
    thread = views.newest_main_thread(seen)
    standing = tuple(frame for frame in thread.frames if frame.user) if thread is not None else ()
    if event.messages:
        site = event.site  # the program has gone on; the line that began the message tells
    wait = Wait(
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
    return _with_peers(wait, event)


def _others_under_way(pending: tuple[Event, ...]) -> tuple[Event, ...]:
    """What a rank may wait for as well as for the oldest; a GPU finishes them in order."""
    return () if pending[0].backend == "nccl" else pending[1:]


def _wait_for_message(seen: RankEvidence, call: Call, calls: tuple[Call, ...]) -> Wait:
    """A wait for a message that torch does not record: the sends and receives before it tell the peer, where they all
    have the same one."""
    begun = messages_begun(tuple(c for c in calls if c.index < call.index and c.thread == call.thread))[-_UNDER_WAY:]
    earlier = begun[-1] if begun else None
    peers = _peers(begun, seen)
    return Wait(
        op=earlier.op if earlier is not None else call.op,
        group=earlier.group if earlier is not None else "",
        seq=0,
        called=0,
        peer=next(iter(peers)) if len(peers) == 1 else -1,
        since=call.entered_at,
        site=call.site,
        firm=_alone(seen, call.thread) and views.same_stack(seen) is not False,
        candidates=peers if len(peers) > 1 else frozenset(),
    )


def messages_begun(calls: tuple[Call, ...]) -> list[Call]:
    """Sends and receives of one thread that returned at once; a `send` that waits for itself begins none."""
    begun = []
    outermost = ""
    for call in calls:
        outermost = call.op if call.depth == 0 else outermost
        if call.op in BEGUN and outermost in BEGUN | {"batch_isend_irecv"}:
            begun.append(call)
    return begun


def _peers(begun: list[Call], seen: RankEvidence) -> frozenset[int]:
    """The ranks that the messages were for; all of the group where one of them does not tell."""
    known = {call.peer for call in begun}
    if -1 not in known:
        return frozenset(known)
    named = {group.name: group.ranks for group in seen.progress.groups} if seen.progress is not None else {}
    world = tuple(range(seen.progress.declared_world)) if seen.progress is not None else ()
    untold = {call.group for call in begun if call.peer < 0}
    everybody = {rank for group in untold for rank in named.get(group) or world}
    return frozenset(known | everybody) - {-1, seen.rank}


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


def stopped(seen: RankEvidence) -> bool:
    """By SIGSTOP or a debugger. Taking a stack traces a process for a moment: one look at that does not count."""
    states = [sample.state for sample in seen.processes[-2:]]
    return states[-1:] == ["T"] or (len(states) == 2 and all(state in "Tt" for state in states))


def just_entered(seen: RankEvidence, evidence: Evidence) -> bool:
    """In a call too young to tell anything: the rank is on its way."""
    calls = seen.progress.calls if seen.progress is not None else ()
    return any(c.left_at is None and c.depth == 0 and evidence.collected_at - c.entered_at < SETTLED_S for c in calls)


def waits_unseen(seen: RankEvidence, timeline: Timeline) -> bool:
    """Stands in a collective of which there is no record, waits for a GPU whose queue is not known, or has an
    unfinished collective and no stack that tells whether it waits for it."""
    if not seen.stacks:
        return bool(timeline.pending())
    thread = views.newest_main_thread(seen)
    frames = views.python_frames(thread.frames) if thread is not None else ()
    inner = frames[: next((at for at, frame in enumerate(frames) if frame.user), len(frames))]
    if any("/torch/cuda/" in frame.file and frame.function == "synchronize" for frame in inner):
        return not seen.collectives and views.same_stack(seen) is True
    if seen.progress is None and not seen.collectives and stands_in_device_wait(seen):
        return True
    return seen.progress is None and any(frame.file.endswith("/distributed_c10d.py") for frame in inner)
