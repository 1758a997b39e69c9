"""The sequence of collectives of one rank: torch's flight recorder says what, the probe's calls say from which line."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

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
    through: str = ""
    """The library's function that the user's line called, where one stands between it and the collective."""
    started: bool | None = None
    """The GPU has come to it; None where torch does not time collectives and nobody knows."""
    messages: tuple[Message, ...] = ()
    """Of a send, a receive or a batch of them: with whom."""
    reduces: str = ""
    """`SUM`, `MAX` and the like; empty where it is not known, or nothing is reduced."""
    shape: tuple[int, ...] = ()
    """Of what is reduced, where its elements would lie elsewhere if it were the other way round; no lengths of 1."""
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
        differ = any(mine != theirs and mine not in (-1, "") and theirs not in (-1, "") for mine, theirs in pairs)
        return differ or self._turned_round(other)

    def _turned_round(self, other: Event) -> bool:
        """As many elements, in another order. A shape that only folds the same ones in another way is none of that."""
        return self.shape != other.shape and sorted(self.shape) == sorted(other.shape)


class Events(Mapping[int, Event]):
    """A rank's collectives of one group by their sequence numbers. Thousands of ranks make the same calls at other
    times: what was made is one object for all, the times are each rank's own."""

    __slots__ = ("_made", "_places", "_times")

    def __init__(self, places: dict[int, int], made: tuple[Event, ...], times: array[float]) -> None:
        """Sequence number → place in the two others: what was made, by whomever first, and when this rank did."""
        self._places = places
        self._made = made
        self._times = times

    def __getitem__(self, seq: int) -> Event:
        at = self._places[seq]
        return replace(self._made[at], at=self._times[at])

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, seq: object) -> bool:
        return seq in self._places

    def entered_at(self, seq: int) -> float:
        return self._times[self._places[seq]]

    def alike(self, seq: int) -> Event | None:
        """The event but for its time, as one object for all ranks that made it."""
        at = self._places.get(seq)
        return None if at is None else self._made[at]

    def unfinished(self) -> list[Event]:
        events = zip(self._made, self._times, strict=True)
        return [replace(event, at=at) for event, at in events if not event.done]


NO_EVENTS = Events({}, (), array("d"))


class Timeline(msgspec.Struct, frozen=True):
    rank: int
    recorded: bool
    """By the flight recorder; otherwise by the probe's own count of Python calls."""
    events: dict[str, Events] = msgspec.field(default_factory=dict)
    """By group, as far back as is known."""
    newest: dict[str, int] = msgspec.field(default_factory=dict)
    called: dict[str, int] = msgspec.field(default_factory=dict)
    """Group → collectives made from Python, by the probe's count: comparable even where the recorder is lost."""
    messages: tuple[Event, ...] = ()
    """Sends and receives that the recorder knows, oldest first."""
    whole: bool = False
    """The record reaches back to the first call."""

    def of(self, group: str) -> Events:
        return self.events.get(group, NO_EVENTS)

    def at(self, group: str, seq: int) -> Event | None:
        return self.of(group).get(seq)

    def after(self, group: str, seq: int) -> tuple[Event, ...]:
        """The group's collectives entered after that place, in order."""
        if seq >= self.newest.get(group, 0):
            return ()
        events = self.of(group)
        return tuple(events[later] for later in sorted(events) if later > seq)

    def oldest(self, group: str) -> int | None:
        return min(self.of(group), default=None)

    def pending(self) -> tuple[Event, ...]:
        """Collectives entered and not finished, oldest first."""
        found = [event for group in self.events.values() for event in group.unfinished()]
        return tuple(sorted(found, key=lambda event: event.at))

    def queue(self) -> tuple[Event, ...]:
        """The same with messages: where the rank's GPU stands, and what is behind."""
        under_way = [event for event in self.messages if not event.done]
        return tuple(sorted((*self.pending(), *under_way), key=lambda event: event.at)) if under_way else self.pending()


class Known:
    """What the ranks whose timelines were built so far have made."""

    def __init__(self) -> None:
        self.events: dict[object, Event] = {}
        self.places: dict[tuple[int, ...], dict[int, int]] = {}


class _Rows:
    """Events of one rank, while its timeline is built."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._rows: dict[str, tuple[dict[int, Event], dict[int, float]]] = {}

    def add(self, at: float, site: tuple[Frame, ...], *, group: str, seq: int, **rest: Any) -> None:
        """An event of these fields; a later one of the same number takes its place."""
        key = (site, group, seq, *rest.values())
        event = self._known.events.get(key)
        if event is None:
            event = self._known.events[key] = Event(at=at, site=site, group=group, seq=seq, **rest)
        row = self._rows.get(group)
        if row is None:
            row = self._rows[group] = {}, {}
        row[0][seq] = event
        row[1][seq] = at

    def made(self) -> dict[str, Events]:
        return {group: self._shared(*row) for group, row in self._rows.items()}

    def _shared(self, events: dict[int, Event], times: dict[int, float]) -> Events:
        numbers = tuple(events)
        places = self._known.places.get(numbers)
        if places is None:
            places = self._known.places[numbers] = dict(zip(numbers, range(len(numbers)), strict=True))
        return Events(places, tuple(events.values()), array("d", times.values()))


def build_timeline(rank: RankEvidence, known: Known | None = None) -> Timeline:
    """By the flight recorder where it could be read, else by the probe's calls."""
    if not rank.collectives:
        return calls_timeline(rank, known)
    calls = rank.progress.calls if rank.progress is not None else ()
    return _from_recorder(rank, calls, _called(calls), known or Known())


def calls_timeline(rank: RankEvidence, known: Known | None = None) -> Timeline:
    """By the probe's calls alone: they outlive the rank, but do not hold what C++ issued by itself."""
    calls = rank.progress.calls if rank.progress is not None else ()
    return _from_calls(rank, calls, _called(calls), known or Known())


def _called(calls: tuple[Call, ...]) -> dict[str, int]:
    called: dict[str, int] = {}
    for call in calls:
        if call.seq > 0:
            called[call.group] = max(called.get(call.group, 0), call.seq)
    return called


def _from_recorder(rank: RankEvidence, calls: tuple[Call, ...], called: dict[str, int], known: Known) -> Timeline:
    covering = _Covering(calls)
    rows = _Rows(known)
    newest: dict[str, int] = {}
    record = read_record(rank)
    for entry in record.collectives:
        call = covering.of(entry) if calls else None
        done = record.done(entry)
        rows.add(
            entry.created_at,
            (call.site if call is not None else ()) or _own(entry.frames),
            group=entry.group,
            seq=entry.seq,
            op=entry.op,
            done=done,
            backend=entry.backend,
            numel=_numel(entry),
            dtype=next(iter(entry.input_dtypes or entry.output_dtypes), ""),
            root=call.peer if call is not None else -1,
            step=call.step if call is not None else -1,
            through=call.through if call is not None else "",
            started=done or record.started(entry),
            reduces=_reduces(call),
            shape=_shape(call),
        )
        newest[entry.group] = max(newest.get(entry.group, 0), entry.seq)
    for group, count in rank.last_enqueued.items():
        # That count may run on with every message, the numbers of the entries do not.
        if not _made_messages(rank, group) or (group not in newest and not _whole_record(rank)):
            newest[group] = max(newest.get(group, 0), count)
    waits = _Waits(calls)
    messages = tuple(_message(batch, record, covering, waits) for batch in record.messages)
    return Timeline(rank.rank, True, rows.made(), newest, called, messages, _whole_record(rank))


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


def _from_calls(rank: RankEvidence, calls: tuple[Call, ...], called: dict[str, int], known: Known) -> Timeline:
    rows = _Rows(known)
    for call in calls:
        if call.seq <= 0 or not call.group:
            continue
        rows.add(
            call.entered_at,
            call.site,
            group=call.group,
            seq=call.seq,
            op=call.op,
            done=call.left_at is not None and not call.failed,
            backend="",
            numel=-1 if call.op == "reduce_scatter" else call.numel,  # its first tensor is a share, of any size
            dtype=call.dtype,
            root=call.peer,
            step=call.step,
            through=call.through,
            reduces=_reduces(call),
            shape=_shape(call),
        )
    return Timeline(rank=rank.rank, recorded=False, events=rows.made(), newest=dict(called), called=called)


def _reduces(call: Call | None) -> str:
    return call.note.partition(" ")[0] if call is not None and call.op in REDUCING else ""


def _shape(call: Call | None) -> tuple[int, ...]:
    """`SUM 64x32`."""
    lengths = call.note.partition(" ")[2] if call is not None and call.op in REDUCING else ""
    parts = lengths.split("x") if lengths else []
    return tuple(map(int, parts)) if all(part.isdecimal() and len(part) < 19 for part in parts) else ()


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
