"""Torch's flight recorder: which collectives a rank entered, as torch itself wrote them down."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import msgspec

from rankscope.errors import EvidenceError
from rankscope.evidence.model import Collective, Frame, Group
from rankscope.evidence.readers.in_child import bounded_memory
from rankscope.whose_code import is_user_file

PLAIN_NAMES = {
    "all_reduce_barrier": "barrier",
    "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "allgather": "all_gather",
    "allreduce": "all_reduce",
}
"""The same operations under the names that backends give them."""


MOST_RANKS = 200_000
"""Of a job; what a file declares beyond that is no job's."""
_MOST_GROUPS_RANKS = 20_000_000
"""Members of all groups together."""
_MOST_SIZES = 1_000_000
_OF_A_RECORDER = frozenset({"version", "pg_config", "pg_status"})
"""What a dump has in any case."""


class FlightRecord(msgspec.Struct, frozen=True):
    collectives: tuple[Collective, ...]
    """Oldest first."""
    last_enqueued: dict[str, int]
    """Group name → number of the newest collective entered; -1 for none."""
    last_completed: dict[str, int]
    groups: tuple[Group, ...]
    """Only those whose ranks are recorded."""


def parse_flight_json(data: bytes) -> FlightRecord:
    """The record in a JSON dump. Raises EvidenceError when it is not one."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise EvidenceError(f"the flight record is not valid JSON: {error}") from error
    return _record(document)


def parse_flight_pickle(data: bytes) -> FlightRecord:
    """The record in a pickled dump; nothing in it is run. Raises EvidenceError when it is not one."""
    try:
        with bounded_memory(len(data)):
            document = PlainUnpickler(InMemory(data)).load()
    except EvidenceError:
        raise
    except Exception as error:  # a broken pickle raises nearly anything
        raise EvidenceError(f"the flight record is not a valid pickle: {as_shown(error)}") from error
    return _record(document)


class InMemory:
    """Bytes in the form in which an unpickler takes all of them at once, without a copy."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def peek(self, _: int) -> bytes:
        return self._data

    def read(self, size: int) -> bytes:
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def readline(self) -> bytes:
        return self.read(self._data.find(b"\n") + 1 or len(self._data))


class PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries; a recorder's dump needs nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        raise EvidenceError(f"the flight record asks to load {module}.{name}, which a recorder never does: refused")

    def persistent_load(self, pid: Any) -> Any:
        raise EvidenceError(f"the flight record refers to an outside object {as_shown(pid)}: refused")


def _record(document: object) -> FlightRecord:
    top = as_dict(document, "the dump")
    collectives: list[Collective] = []
    names: dict[str, str] = {}
    for number, item in enumerate(entries_of(top)):
        entry = as_dict(item, f"entry {number}")
        collective = _collective(entry, number)
        collectives.append(collective)
        names[as_word(entry.get("pg_id"), "pg_id")] = collective.group
    enqueued, completed = statuses(top.get("pg_status", {}), names)
    collectives.sort(key=lambda collective: collective.record_id)
    return FlightRecord(tuple(collectives), enqueued, completed, as_groups(top.get("pg_config", {})))


def entries_of(top: dict[Any, Any]) -> list[Any]:
    """A recorder that has recorded nothing writes no list, or leaves it out, as that of torch 2.9 does with Gloo."""
    empty = top.get("entries", "") is None or ("entries" not in top and top.keys() >= _OF_A_RECORDER)
    return [] if empty else as_list(top.get("entries"), "entries")


def statuses(value: object, names: Mapping[str, str]) -> tuple[dict[str, int], dict[str, int]]:
    """Group name → newest collective entered, and finished. `names`: the group's id in this process → its name."""
    enqueued: dict[str, int] = {}
    completed: dict[str, int] = {}
    for pg_id, item in as_dict(value, "pg_status").items():
        own = as_word(pg_id, "the name of a group")
        status = as_dict(item, f"the status of group {own}")
        name = names.get(own, own)
        enqueued[name] = as_integer(status.get("last_enqueued_collective", -1), "last_enqueued_collective")
        completed[name] = as_integer(status.get("last_completed_collective", -1), "last_completed_collective")
    return enqueued, completed


def _collective(entry: dict[Any, Any], number: int) -> Collective:
    backend, _, op = as_text(entry.get("profiling_name"), "profiling_name").rpartition(":")
    op = PLAIN_NAMES.get(op, op)
    pair = as_texts(entry.get("process_group", ["", ""]), "process_group")
    pg_id = as_word(entry.get("pg_id", ""), "pg_id")
    completed_ns = entry.get("time_discovered_completed_ns")
    started_ns = entry.get("time_discovered_started_ns")
    timeout_ms = entry.get("timeout_ms")
    return Collective(
        record_id=as_integer(entry.get("record_id", number), "record_id"),
        group=pair[0] if pair and pair[0] != "" else pg_id,
        seq=as_integer(entry.get("collective_seq_id", 0), "collective_seq_id"),
        p2p_seq=as_integer(entry.get("p2p_seq_id", 0), "p2p_seq_id"),
        op=op,
        backend=backend,
        p2p=entry.get("is_p2p", False) is True,
        state=as_text(entry.get("state", "scheduled"), "state"),
        retired=entry.get("retired", False) is True,
        created_at=as_integer(entry.get("time_created_ns", 0), "time_created_ns") / 1e9,
        input_sizes=as_sizes(entry.get("input_sizes", []), "input_sizes"),
        output_sizes=as_sizes(entry.get("output_sizes", []), "output_sizes"),
        input_dtypes=as_texts(entry.get("input_dtypes", []), "input_dtypes"),
        output_dtypes=as_texts(entry.get("output_dtypes", []), "output_dtypes"),
        completed_at=(as_integer(completed_ns, "time_discovered_completed_ns") / 1e9) if completed_ns else None,
        started_at=(as_integer(started_ns, "time_discovered_started_ns") / 1e9) if started_ns else None,
        timeout_ms=None if timeout_ms is None else as_integer(timeout_ms, "timeout_ms"),
        thread=as_integer(entry.get("thread_id", 0), "thread_id"),
        frames=tuple(as_frame(frame) for frame in as_list(entry.get("frames", []), "frames")),
    )


def as_frame(item: object) -> Frame:
    frame = as_dict(item, "a frame")
    if not all(isinstance(value, str | int) for value in frame.values()):
        raise EvidenceError("the flight record is malformed: a frame holds more than texts and numbers")
    file = as_text(frame.get("filename", ""), "filename")
    name = as_text(frame.get("name", ""), "name")
    return Frame(name, file, as_integer(frame.get("line", 0), "line"), is_user_file(file))


def as_groups(config: object) -> tuple[Group, ...]:
    groups: list[Group] = []
    members = 0
    for key, item in as_dict(config, "pg_config").items():
        entry = as_dict(item, f"the configuration of group {as_word(key, 'the name of a group')}")
        ranks = _ranks(entry.get("ranks", ""))
        if ranks:
            name = as_text(entry.get("name", key), "name")
            groups.append(Group(name, as_text(entry.get("desc", ""), "desc"), ranks))
            members += len(ranks)
            if members > _MOST_GROUPS_RANKS:
                raise EvidenceError("the flight record is malformed: more groups than a job can have")
    return tuple(groups)


def _ranks(value: object) -> tuple[int, ...]:
    """`[0, 1]`, as a text or as a list."""
    if isinstance(value, str) and len(value) > 16 * MOST_RANKS:
        raise EvidenceError(f"the flight record is malformed: a group of more than {MOST_RANKS} ranks")
    items: list[Any] = value.strip("[] ").split(",") if isinstance(value, str) else as_list(value, "ranks")
    if len(items) > MOST_RANKS:
        raise EvidenceError(f"the flight record is malformed: a group of {len(items)} ranks")
    ranks = tuple(as_integer(item, "ranks") for item in items if item != "")
    if ranks and not (min(ranks) >= 0 and max(ranks) < MOST_RANKS):
        raise EvidenceError(f"the flight record is malformed: a rank {min(ranks) if min(ranks) < 0 else max(ranks)}")
    return ranks


def as_sizes(value: object, what: str) -> tuple[tuple[int, ...], ...]:
    rows = [as_list(sizes, what) for sizes in as_list(value, what)]
    if sum(map(len, rows)) > _MOST_SIZES:
        raise EvidenceError(f"the flight record is malformed: {what} of more than {_MOST_SIZES} numbers")
    return tuple(tuple(as_integer(size, what) for size in sizes) for sizes in rows)


def as_texts(value: object, what: str) -> tuple[str, ...]:
    return tuple(as_text(item, what) for item in as_list(value, what))


def as_dict(value: object, what: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise EvidenceError(f"the flight record is malformed: {what} is {as_shown(value)}, not a dictionary")
    return value


def as_list(value: object, what: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise EvidenceError(f"the flight record is malformed: {what} is {as_shown(value)}, not a list")
    return list(value)


def as_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise EvidenceError(f"the flight record is malformed: {what} is {as_shown(value)}, not a text")
    return value


def as_integer(value: object, what: str) -> int:
    try:
        # JSON dumps of torch write some numbers as texts. Larger ones than 64 bits are none of torch's.
        if isinstance(value, (int, str)) and not isinstance(value, bool) and abs(number := int(value)) < 2**64:
            return number
    except ValueError:
        pass
    raise EvidenceError(f"the flight record is malformed: {what} is {as_shown(value)}, not a whole number")


def as_shown(value: object, depth: int = 1) -> str:
    """A few words about any value. Its `repr` may be longer than the memory: twenty lists hold each other a million
    times over."""
    if isinstance(value, str | bytes):
        text = repr(value[:60])
    elif isinstance(value, int):
        text = repr(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
    elif isinstance(value, list | tuple) and len(value) <= 4 and depth > 0:
        text = f"[{', '.join(as_shown(item, depth - 1) for item in value)}]"
    elif isinstance(value, list | tuple | dict | set | frozenset):
        text = f"a {type(value).__name__} of {len(value)}"
    elif isinstance(value, BaseException):
        text = f"{type(value).__name__}: {as_shown(value.args[0])}" if value.args else type(value).__name__
    else:
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def as_word(value: object, what: str) -> str:
    """A name that torch writes as a text or as a number; empty for none."""
    if value is None:
        return ""
    return value if isinstance(value, str) else str(as_integer(value, what))
