"""The sequence of collectives of one rank: torch's flight recorder says what, the probe's calls say from which line."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from rankscope.diagnosis.record import Batch, Record, read_record
from rankscope.evidence.model import Call, Collective, Frame, RankEvidence

COVERING = frozenset({"backward", "_broadcast_coalesced", "_verify_params_across_processes"})
"""Calls in which torch's C++ issues collectives by itself."""
SET_UP = frozenset({"init_process_group", "new_group", "split_group", "shrink_group", "_store_based_barrier"})
POINT_TO_POINT = frozenset(
    {"send", "recv", "isend", "irecv", "send_object_list", "recv_object_list", "batch_isend_irecv"}
)
BEGUN = frozenset({"isend", "irecv"})
"""Messages that return at once and are waited for later."""
ROOTED = frozenset(
    {"broadcast", "reduce", "gather", "scatter", "broadcast_object_list", "gather_object", "scatter_object_list"}
)
SIZED = frozenset(
    {
        *("all_reduce", "allreduce", "broadcast", "reduce", "all_gather", "allgather", "reduce_scatter"),
        *("all_gather_into_tensor", "_all_gather_base", "reduce_scatter_tensor", "_reduce_scatter_base"),
        *("allreduce_coalesced", "all_reduce_coalesced"),
    }
)
"""Every rank of the group must pass the same number of elements to these."""
REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced"})
"""Of these the probe notes how they reduce."""
BATCH = "batch_isend_irecv"

_SLACK_S = 5e-6
"""Both clocks are the same one; only rounding lies between them."""


class Message(msgspec.Struct, frozen=True):
    """One half of a message between two ranks."""

    sends: bool
    peer: int
    """The other rank, as the world counts."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """A collective that a rank has entered; or a message, where the recorder knows those."""

    group: str
    seq: int
    op: str
    at: float
    done: bool
    backend: str
    numel: int
    dtype: str
    root: int
    step: int
    site: tuple[Frame, ...]
    thread: int
    through: str = ""
    """The library's function that the user's line called, where one stands between it and the collective."""
    started: bool | None = None
    """The GPU has come to it; None where torch does not time collectives and nobody knows."""
    messages: tuple[Message, ...] = ()
    """Of a send, a receive or a batch of them: with whom."""
    reduces: str = ""
    """`SUM`, `MAX` and the like; empty where it is not known, or nothing is reduced."""
    awaited_at: float | None = None
    """Of messages: when the program first waited for one after them; what it enqueued before that may overtake them."""

    def signature(self) -> tuple[str, int, str, int, str]:
        """What must agree between the ranks of a group."""
        sized = self.op in SIZED
        return (
            self.op,
            self.numel if sized else -1,
            self.dtype if sized else "",
            self.root if self.op in ROOTED else -1,
            self.reduces,
        )

    def contradicts(self, other: Event) -> bool:
        """Whether the two cannot be one collective; what is not known of one of them contradicts nothing."""
        pairs = zip(self.signature(), other.signature(), strict=True)
        return any(mine != theirs and mine not in (-1, "") and theirs not in (-1, "") for mine, theirs in pairs)


class Timeline(msgspec.Struct, frozen=True):
    rank: int
    recorded: bool
    """By the flight recorder; otherwise by the probe's own count of Python calls."""
    events: dict[str, dict[int, Event]] = msgspec.field(default_factory=dict)
    """Group → sequence number → event, as far back as is known."""
    newest: dict[str, int] = msgspec.field(default_factory=dict)
    called: dict[str, int] = msgspec.field(default_factory=dict)
    """Group → collectives made from Python, by the probe's count: comparable even where the recorder is lost."""
    messages: tuple[Event, ...] = ()
    """Sends and receives that the recorder knows, oldest first."""
    whole: bool = False
    """The record reaches back to the first call."""

    def at(self, group: str, seq: int) -> Event | None:
        return self.events.get(group, {}).get(seq)

    def after(self, group: str, seq: int) -> tuple[Event, ...]:
        """The group's collectives entered after that place, in order."""
        if seq >= self.newest.get(group, 0):
            return ()
        events = self.events.get(group, {})
        return tuple(events[later] for later in sorted(events) if later > seq)

    def oldest(self, group: str) -> int | None:
        return min(self.events.get(group, {}), default=None)

    def pending(self) -> tuple[Event, ...]:
        """Collectives entered and not finished, oldest first."""
        found = [event for group in self.events.values() for event in group.values() if not event.done]
        return tuple(sorted(found, key=lambda event: event.at))

    def queue(self) -> tuple[Event, ...]:
        """The same with messages: where the rank's GPU stands, and what is behind."""
        under_way = [event for event in self.messages if not event.done]
        return tuple(sorted((*self.pending(), *under_way), key=lambda event: event.at)) if under_way else self.pending()


def build_timeline(rank: RankEvidence) -> Timeline:
    """By the flight recorder where it could be read, else by the probe's calls."""
    if not rank.collectives:
        return calls_timeline(rank)
    calls = rank.progress.calls if rank.progress is not None else ()
    return _from_recorder(rank, calls, _called(calls))


def calls_timeline(rank: RankEvidence) -> Timeline:
    """By the probe's calls alone: they outlive the rank, but do not hold what C++ issued by itself."""
    calls = rank.progress.calls if rank.progress is not None else ()
    return _from_calls(rank, calls, _called(calls))


def _called(calls: tuple[Call, ...]) -> dict[str, int]:
    called: dict[str, int] = {}
    for call in calls:
        if call.seq > 0:
            called[call.group] = max(called.get(call.group, 0), call.seq)
    return called


def _from_recorder(rank: RankEvidence, calls: tuple[Call, ...], called: dict[str, int]) -> Timeline:
    covering = _Covering(calls)
    events: dict[str, dict[int, Event]] = {}
    newest: dict[str, int] = {}
    record = read_record(rank)
    for entry in record.collectives:
        call = covering.of(entry) if calls else None
        events.setdefault(entry.group, {})[entry.seq] = Event(
            group=entry.group,
            seq=entry.seq,
            op=entry.op,
            at=entry.created_at,
            done=record.done(entry),
            backend=entry.backend,
            numel=_numel(entry),
            dtype=next(iter(entry.input_dtypes or entry.output_dtypes), ""),
            root=call.peer if call is not None else -1,
            step=call.step if call is not None else -1,
            site=(call.site if call is not None else ()) or _own(entry.frames),
            thread=entry.thread,
            through=call.through if call is not None else "",
            started=record.started(entry),
            reduces=_reduces(call),
        )
        newest[entry.group] = max(newest.get(entry.group, 0), entry.seq)
    for group, count in rank.last_enqueued.items():
        # That count may run on with every message, the numbers of the entries do not.
        if not _made_messages(rank, group) or (group not in newest and not _whole_record(rank)):
            newest[group] = max(newest.get(group, 0), count)
    waits = _Waits(calls)
    messages = tuple(_message(batch, record, covering, waits) for batch in record.messages)
    return Timeline(rank.rank, True, events, newest, called, messages, _whole_record(rank))


def _message(batch: Batch, record: Record, covering: _Covering, waits: _Waits) -> Event:
    """A send, a receive, or a batch of them, which a GPU does as one."""
    last = batch.entries[-1]
    call = covering.of(batch.entries[0])
    alone = batch.messages[0] if len(batch.messages) == 1 and not batch.grouped else None
    told = BATCH if alone is None else ("isend" if alone.sends else "irecv")
    return Event(
        group=last.group,
        seq=0,
        op=call.op if call is not None and call.op in POINT_TO_POINT else told,
        at=batch.entries[0].created_at,
        done=record.done(last),
        backend=last.backend,
        numel=sum(map(_numel, batch.entries)),
        dtype=next((name for entry in batch.entries for name in entry.input_dtypes), ""),
        root=-1,
        step=call.step if call is not None else -1,
        site=(call.site if call is not None else ()) or _own(batch.entries[0].frames),
        thread=last.thread,
        through=call.through if call is not None else "",
        started=record.started(last),
        messages=tuple(Message(each.sends, each.peer) for each in batch.messages),
        awaited_at=last.created_at if call is not None and call.op not in BEGUN | {BATCH} else waits.after(last),
    )


def _whole_record(rank: RankEvidence) -> bool:
    return min(entry.record_id for entry in rank.collectives) == 0


def _made_messages(rank: RankEvidence, group: str) -> bool:
    calls = rank.progress.calls if rank.progress is not None else ()
    return any(call.group == group and call.op in POINT_TO_POINT for call in calls) or any(
        entry.p2p and entry.group == group for entry in rank.collectives
    )


def _own(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The user's frames; the same object where all are, so that equal places of many ranks are told at once."""
    return frames if all(frame.user for frame in frames) else tuple(frame for frame in frames if frame.user)


def _from_calls(rank: RankEvidence, calls: tuple[Call, ...], called: dict[str, int]) -> Timeline:
    events: dict[str, dict[int, Event]] = {}
    for call in calls:
        if call.seq <= 0 or not call.group:
            continue
        events.setdefault(call.group, {})[call.seq] = Event(
            group=call.group,
            seq=call.seq,
            op=call.op,
            at=call.entered_at,
            done=call.left_at is not None and not call.failed,
            backend="",
            numel=-1 if call.op == "reduce_scatter" else call.numel,  # its first tensor is a share, of any size
            dtype=call.dtype,
            root=call.peer,
            step=call.step,
            site=call.site,
            thread=call.thread,
            through=call.through,
            reduces=_reduces(call),
        )
    return Timeline(rank=rank.rank, recorded=False, events=events, newest=dict(called), called=called)


def _reduces(call: Call | None) -> str:
    return call.note if call is not None and call.op in REDUCING else ""


def _numel(entry: Collective) -> int:
    # What a rank puts in must agree; what comes out depends on the operation.
    sizes = entry.input_sizes or entry.output_sizes
    if len(sizes) == 1 and len(sizes[0]) == 1:
        return sizes[0][0]  # no number of its own for each of many ranks
    total = 0
    for size in sizes:
        count = 1
        for dimension in size:
            count *= dimension
        total += count
    return total


class _Covering:
    """Finds the outermost recorded call that was open when the recorder noted an entry."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self._calls = [call for call in calls if call.depth == 0 and (call.group or call.op in COVERING | {BATCH})]
        self._starts = [call.entered_at for call in self._calls]
        self._groups = {call.group for call in self._calls}

    def of(self, entry: Collective) -> Call | None:
        at = bisect_right(self._starts, entry.created_at + _SLACK_S)
        for call in reversed(self._calls[max(0, at - 4) : at]):
            if call.group and call.group != entry.group and entry.group in self._groups:
                continue  # another thread was in a call of its own group
            if call.left_at is None or call.left_at + _SLACK_S >= entry.created_at:
                return call
        if entry.op.endswith("coalesced"):
            # A coalescing manager issues its calls when it is left: they were noted before.
            return next((call for call in reversed(self._calls[:at]) if call.group == entry.group), None)
        return None


class _Waits:
    """When the program waited for what it had begun."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self._times = sorted(call.entered_at for call in calls if call.op == "Work.wait")

    def after(self, entry: Collective) -> float | None:
        at = bisect_right(self._times, entry.created_at)
        return self._times[at] if at < len(self._times) else None
