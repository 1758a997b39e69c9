"""Reads a flight record, pickled or JSON, into columns; nothing in it is run."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from rankscope.errors import EvidenceError
from rankscope.evidence.flight import (
    PLAIN_NAMES,
    InMemory,
    PlainUnpickler,
    as_dict,
    as_integer,
    as_list,
    as_shown,
    as_sizes,
    as_text,
    as_texts,
    as_word,
    entries_of,
    statuses,
)
from rankscope.evidence.readers.columns import RETIRED, STATES, Columns, Kind, KindTable
from rankscope.evidence.readers.in_child import bounded_memory
from rankscope.evidence.readers.middle import WithoutMiddle, without_middle

_MOST_ENTRIES = 2_000_000


def read_pickle(data: bytes, table: KindTable, newest: int | None = None) -> Columns:
    """The record in a pickled dump; nothing in it is run. Raises EvidenceError when it is not one.

    With `newest`, older calls may be skipped: those before the first unfinished one and before the `newest` last ones
    of every group.
    """
    short = without_middle(data, newest) if newest is not None and table.middles_needless else None
    if short is not None and newest is not None:
        columns = _without_middle(short, table, newest)
        if columns is not None:
            return columns
        # The dumps of one job are alike: the next ones are read in full at once.
        table.middles_needless = False
    return _columns(_unpickled(data), table, newest)


def _without_middle(short: WithoutMiddle, table: KindTable, newest: int) -> Columns | None:
    """None where the middle may matter, or the rest does not hold together without it."""
    try:
        document = _unpickled(short.data)
        entries = as_list(as_dict(document, "the dump").get("entries"), "entries")
        if len(entries) != short.calls or not _one_sequence(entries, newest, short.total):
            return None
        return _columns(document, table, newest, short.total)
    except (EvidenceError, KeyError, TypeError):
        return None  # whatever is wrong with it, reading it in full will tell


def _unpickled(data: bytes) -> object:
    try:
        with bounded_memory(len(data)):
            return PlainUnpickler(InMemory(data)).load()
    except EvidenceError:
        raise
    except MemoryError as error:
        raise EvidenceError("the flight record asks for more memory than a dump can need: refused") from error
    except EOFError as error:
        raise EvidenceError("the flight record is cut off: its writer was stopped before the end") from error
    except Exception as error:  # a broken pickle raises nearly anything
        cut = "pickle data was truncated" in str(error)
        why = (
            "is cut off: its writer was stopped before the end" if cut else f"is not a valid pickle: {as_shown(error)}"
        )
        raise EvidenceError(f"the flight record {why}") from error


def read_json(data: bytes, table: KindTable) -> Columns:
    """The record in a JSON dump. Raises EvidenceError when it is not one."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise EvidenceError(f"the flight record is not valid JSON: {error}") from error
    return _columns(document, table, None)


def _columns(document: object, table: KindTable, newest: int | None, total: int | None = None) -> Columns:
    try:
        return _read_columns(document, table, newest, total)
    except RecursionError as error:
        raise EvidenceError("the flight record is nested too deeply: no recorder writes that") from error


def _read_columns(document: object, table: KindTable, newest: int | None, total: int | None) -> Columns:
    top = as_dict(document, "the dump")
    if "entries" not in top:
        raise EvidenceError("the flight record has no entries: not a dump of torch's flight recorder")
    entries = entries_of(top)
    if len(entries) > _MOST_ENTRIES:
        raise EvidenceError(f"the flight record has {len(entries)} entries; no recorder keeps so many")
    total = total if total is not None else len(entries)
    used = _calls_needed(entries, newest, total) if newest is not None else len(entries)
    skipped = total - used
    first = entries[0] if skipped else {}
    entries = entries[len(entries) - used :]
    kinds, names = _kinds(entries, table)
    enqueued, completed = statuses(top.get("pg_status", {}), names)
    (seqs, p2p_seqs, records, created, ended), flags = _when(entries)
    columns = Columns(
        skipped=skipped,
        first_ns=_packed([first.get("time_created_ns")], "time_created_ns")[0] if skipped else min(created, default=0),
        kinds=array("I", kinds),
        seqs=seqs,
        p2p_seqs=p2p_seqs,
        records=records,
        created_ns=created,
        completed_ns=ended,
        flags=flags,
        last_enqueued=enqueued,
        last_completed=completed,
        groups=table.groups(top.get("pg_config", {})),
        version=as_word(top.get("version"), "version")[:20],
    )
    return _oldest_first(columns)


_PLACE = itemgetter("record_id", "pg_id", "is_p2p", "retired")


def _calls_needed(entries: list[dict[Any, Any]], newest: int, total: int) -> int:
    """So many of the last calls reach back to the first unfinished one, and hold the `newest` ones of every group."""
    if len(entries) <= newest:
        return len(entries)
    try:
        if _one_sequence(entries, newest, total):
            return newest
        records, groups, p2p, retired = zip(*map(_PLACE, entries), strict=True)
        if any(p2p) or not all(map(int.__le__, records, records[1:])):
            return len(entries)
        end = retired.index(False) if False in retired else len(entries)
        wanted = dict.fromkeys(groups, newest)
    except (KeyError, TypeError, ValueError):
        return len(entries)  # of an older version, or malformed: looked at in full
    for at in range(len(entries) - 1, -1, -1):
        wanted[groups[at]] -= 1
        if max(wanted.values()) <= 0:
            return len(entries) - min(end, at)
    return len(entries)


_SEQUENCE = itemgetter("process_group", "pg_id", "is_p2p", "profiling_name", "record_id", "collective_seq_id")


def _one_sequence(entries: list[dict[Any, Any]], newest: int, total: int) -> bool:
    """Whether all `total` calls but the `newest` ones are finished collectives of one group. Three of them tell it.

    Where records and places in the group's sequence both count on by one from the first to the last call, no other
    group's call lies between them. NCCL ends the calls of a group in their order.
    """
    *about, record, seq = _SEQUENCE(entries[0])
    for call, place in ((entries[-newest], total - newest), (entries[-1], total - 1)):
        *same, that_record, that_seq = _SEQUENCE(call)
        if same[:3] != about[:3] or that_record != record + place or that_seq != seq + place:
            return False
    return about[2] is False and about[3].startswith("nccl:") and entries[-newest]["retired"] is True


_NUMBERS = ("collective_seq_id", "p2p_seq_id", "record_id", "time_created_ns", "time_discovered_completed_ns")
_STATE = ("state", "retired")
_STATE_DEFAULTS = {"state": "scheduled", "retired": False}
_WHEN = itemgetter(*_NUMBERS, *_STATE)


def _when(entries: list[dict[Any, Any]]) -> tuple[list[array[int]], bytes]:
    """The numbers of all entries, column by column, and their flags."""
    names = (*_NUMBERS, *_STATE)
    try:
        columns: list[Sequence[Any]] = list(zip(*map(_WHEN, entries), strict=True)) or [()] * len(names)
    except KeyError:
        columns = [[entry.get(name, _STATE_DEFAULTS.get(name)) for entry in entries] for name in names]
    *numbers, states, retired = columns
    return [_packed(column, name) for column, name in zip(numbers, _NUMBERS, strict=True)], _flags(states, retired)


def _packed(column: Sequence[Any], name: str) -> array[int]:
    try:
        return array("q", column)
    except (TypeError, OverflowError):
        pass
    try:
        # None: what has not ended has no end.
        return array("q", [0 if value is None else value for value in column])
    except (TypeError, OverflowError):
        # Written as a text, which older versions and JSON dumps do.
        values = [0 if value is None else as_integer(value, name) for value in column]
    if any(abs(value) >= 2**63 for value in values):
        raise EvidenceError(f"the flight record is malformed: {name} holds a number too large")
    return array("q", values)


_FLAGS = {
    (state, retired): number + (RETIRED if retired else 0)
    for number, state in enumerate(STATES)
    for retired in (False, True)
}


def _flags(states: Sequence[Any], retired: Sequence[Any]) -> bytes:
    try:
        return bytes(map(_FLAGS.__getitem__, zip(states, retired, strict=True)))
    except (KeyError, TypeError) as error:
        raise EvidenceError(f"the flight record is malformed: no state is called {as_shown(error)}") from error


_ALL_OF_A_KIND = itemgetter(
    *("profiling_name", "frames", "input_sizes", "output_sizes", "process_group", "input_dtypes", "is_p2p", "pg_id"),
    *("output_dtypes", "timeout_ms"),
)


def _kinds(entries: list[dict[Any, Any]], table: KindTable) -> tuple[list[int], dict[str, str]]:
    """The kind of each entry, and the groups' names by their ids in that process.

    Programs go round in loops: the call that followed last time is guessed first, and comparing with it is cheap
    because a dump holds equal frames once.
    """
    numbers: list[int] = []
    names: dict[str, str] = {}
    followed: dict[int, tuple[Any, int]] = {}
    last = -1
    for number, entry in enumerate(entries):
        try:
            what = _ALL_OF_A_KIND(entry)
        except (KeyError, TypeError):
            what = None  # of an older version, or without frames
        guess = followed.get(last)
        if guess is not None and what is not None and guess[0] == what:
            last = guess[1]
        else:
            guess = table.followed.get(last)
            before = last
            if guess is not None and what is not None and guess[0] == what:
                last = guess[1]
            else:
                last = table.number(_kind(as_dict(entry, f"entry {number}"), number, table))
            names[as_word(entry.get("pg_id"), "pg_id")] = table.kinds[last].group
            followed[before] = table.followed[before] = (what, last)
        numbers.append(last)
    return numbers, names


def _kind(entry: dict[Any, Any], number: int, table: KindTable) -> Kind:
    backend, _, op = as_text(entry.get("profiling_name"), "profiling_name").rpartition(":")
    pair = as_texts(entry.get("process_group", ["", ""]), "process_group")
    timeout_ms = entry.get("timeout_ms")
    try:
        frames = tuple(map(table.frame, as_list(entry.get("frames", []), "frames")))
    except EvidenceError as error:
        raise EvidenceError(f"{error} (entry {number})") from error
    own = tuple(frame for frame in frames if frame.user)
    return Kind(
        group=as_text(pair[0], "process_group") if pair and pair[0] != "" else as_word(entry.get("pg_id", ""), "pg_id"),
        op=PLAIN_NAMES.get(op, op),
        backend=backend,
        p2p=entry.get("is_p2p", False) is True,
        input_sizes=as_sizes(entry.get("input_sizes", []), "input_sizes"),
        output_sizes=as_sizes(entry.get("output_sizes", []), "output_sizes"),
        input_dtypes=as_texts(entry.get("input_dtypes", []), "input_dtypes"),
        output_dtypes=as_texts(entry.get("output_dtypes", []), "output_dtypes"),
        timeout_ms=None if timeout_ms is None else as_integer(timeout_ms, "timeout_ms"),
        frames=own or frames,
    )


def _oldest_first(columns: Columns) -> Columns:
    records = columns.records
    numbers = records.tolist()
    if numbers == sorted(numbers):
        return columns
    order = sorted(range(len(records)), key=records.__getitem__)

    def ordered(values: array[int]) -> array[int]:
        return array(values.typecode, [values[at] for at in order])

    return replace(
        columns,
        kinds=ordered(columns.kinds),
        seqs=ordered(columns.seqs),
        p2p_seqs=ordered(columns.p2p_seqs),
        records=ordered(columns.records),
        created_ns=ordered(columns.created_ns),
        completed_ns=ordered(columns.completed_ns),
        flags=bytes(columns.flags[at] for at in order),
    )
