"""What many ranks have in common travels once: parts of evidence, kept on the store under the hash of their content.

A parcel names its parts. Whoever sends one leaves the parts that are not there yet; whoever reads it fetches those that
he does not have. Equal sequences of calls, equal stacks and equal texts of thousands of ranks are one part each, and
one object in the memory of the node that diagnoses; the times at which its ranks came and went are one part of each
node. Of ranks that stand still the second look finds nearly everything known.

The hash stands in the parcel, which is sealed: a part with any other content is refused.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from rankscope.evidence.encode import to_json
from rankscope.evidence.model import (
    Call,
    ChildProcess,
    Collective,
    Evidence,
    Group,
    RaisedException,
    RankEvidence,
    Source,
    StackSample,
    Thread,
)
from rankscope.evidence.plausible import beyond_any_job
from rankscope.evidence.unfolding import OWN_OF_CALL, OWN_OF_COLLECTIVE, Column, Common, E, Unfolding, numbers, times
from rankscope.launch.nodes.bounds import TooMuch, plain_json, unpacked

MOST_CALLS = 4096
"""Of one rank."""
_KEPT_BYTES = 64 << 20
"""Of texts whose values are remembered from look to look."""
_NAME_LENGTH = 40
OwnOfCalls = tuple[list[int], list[float], list[float | None]]
OwnOfCollectives = tuple[list[int], list[int], list[float], list[float | None], list[float | None]]
"""Column by column, what differs from rank to rank where they do the same."""
KINDS: dict[str, Any] = {
    "calls": tuple[Call, ...],
    "collectives": tuple[Collective, ...],
    "own": tuple[tuple[OwnOfCalls | None, OwnOfCollectives | None], ...],
    "threads": tuple[Thread, ...],
    "texts": tuple[str, ...],
    "environment": dict[str, str],
    "groups": tuple[Group, ...],
    "exceptions": tuple[RaisedException, ...],
    "children": tuple[ChildProcess, ...],
    "sources": tuple[Source, ...],
}
_FIELDS = {
    "output_tail": "texts",
    "error_tail": "texts",
    "environment": "environment",
    "groups": "groups",
    "exceptions": "exceptions",
    "children": "children",
}
"""Fields of a rank that are parts as they are."""
_NOTHING_OWN: dict[str, Any] = {
    **dict.fromkeys(("thread", "record_id"), 0),
    **dict.fromkeys(("entered_at", "created_at"), 0.0),
    **dict.fromkeys(("left_at", "completed_at", "started_at"), None),
}


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A look at a rank's stacks; threads differ from rank to rank in their numbers alone."""

    at: float
    source: str
    threads: str
    numbers: tuple[int, ...]


class OfRank(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parts of a rank, by name; of both sequences what ranks have in common."""

    calls: str | None = None
    collectives: str | None = None
    called_groups: str | None = None
    stacks: tuple[Sample, ...] = ()
    earlier_stacks: tuple[Sample, ...] = ()
    fields: dict[str, str] = {}


class Parcel(msgspec.Struct, frozen=True):
    """Evidence without its parts."""

    evidence: Evidence
    ranks: tuple[OfRank, ...]
    sources: str
    own: str
    """What is each rank's own in its sequences, in the order of `ranks`."""

    def parts(self) -> dict[str, str]:
        """Name → kind."""
        found = {self.sources: "sources", self.own: "own"}
        for rank in self.ranks:
            for kind in ("calls", "collectives"):
                if (name := getattr(rank, kind)) is not None:
                    found[name] = kind
            if rank.called_groups is not None:
                found[rank.called_groups] = "groups"
            found |= {sample.threads: "threads" for sample in (*rank.stacks, *rank.earlier_stacks)}
            found |= {name: _FIELDS[field] for field, name in rank.fields.items() if field in _FIELDS}
        return found


def split(evidence: Evidence) -> tuple[Parcel, dict[str, bytes]]:
    """The parcel, and its parts by their names."""
    parts: dict[str, bytes] = {}

    def put(kind: str, value: object) -> str:
        text = to_json(value)
        name = name_of(kind, text)
        if name not in parts:
            parts[name] = zlib.compress(text, 1)
        return name

    ranks = tuple(_of_rank(seen, put) for seen in evidence.ranks)
    rest = replace(evidence, ranks=tuple(map(_without_parts, evidence.ranks)), sources=())
    own = put("own", [_own(seen) for seen in evidence.ranks])
    return Parcel(rest, ranks, put("sources", evidence.sources), own), parts


def _own(seen: RankEvidence) -> list[list[list[Any]] | None]:
    calls = seen.progress.calls if seen.progress is not None else ()
    both = ((calls, OWN_OF_CALL), (seen.collectives, OWN_OF_COLLECTIVE))
    return [[[getattr(entry, name) for entry in entries] for name in own] if entries else None for entries, own in both]


def _of_rank(seen: RankEvidence, put: Callable[[str, object], str]) -> OfRank:
    def common(kind: str, entries: tuple[E, ...], own: tuple[str, ...]) -> str:
        nothing = {name: _NOTHING_OWN[name] for name in own}
        return put(kind, [replace(entry, **nothing) for entry in entries])

    def sample(stack: StackSample) -> Sample:
        threads = put("threads", [replace(thread, tid=0) for thread in stack.threads])
        return Sample(stack.at, stack.source, threads, tuple(thread.tid for thread in stack.threads))

    progress = seen.progress
    return OfRank(
        calls=common("calls", progress.calls, OWN_OF_CALL) if progress is not None and progress.calls else None,
        collectives=common("collectives", seen.collectives, OWN_OF_COLLECTIVE) if seen.collectives else None,
        called_groups=put("groups", progress.groups) if progress is not None and progress.groups else None,
        stacks=tuple(map(sample, seen.stacks)),
        earlier_stacks=tuple(map(sample, seen.earlier_stacks)),
        fields={field: put(kind, value) for field, kind in _FIELDS.items() if (value := getattr(seen, field))},
    )


def _without_parts(seen: RankEvidence) -> RankEvidence:
    progress = seen.progress
    nothing: dict[str, Any] = {field: {} if kind == "environment" else () for field, kind in _FIELDS.items()}
    return replace(
        seen,
        progress=replace(progress, calls=(), groups=()) if progress is not None else None,
        collectives=(),
        stacks=(),
        earlier_stacks=(),
        **nothing,
    )


def name_of(kind: str, text: bytes) -> str:
    """Of a part with this content."""
    return hashlib.sha256(kind.encode() + b"\0" + text).hexdigest()[:_NAME_LENGTH]


class Library:
    """The parts that a reader has, as values. Used by one thread at a time."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, tuple[str, Any, int]] = OrderedDict()
        self._whole: dict[tuple[str, str, int], tuple[Any, ...]] = {}
        """Sequences put together, by both parts and the place in the second: what did not change is not made again."""

    def lacks(self, parcel: Parcel) -> dict[str, str]:
        """Name → kind of the parts that must be brought before the parcel can be opened."""
        return {name: kind for name, kind in parcel.parts().items() if name not in self._values}

    def add(self, name: str, kind: str, data: bytes, ranks: int) -> int:
        """Its bytes, unpacked. Raises TooMuch."""
        text = unpacked(data, ranks)
        if name_of(kind, text) != name:
            raise TooMuch("a part that is not what it is called")
        try:
            value = msgspec.json.decode(plain_json(text), type=KINDS[kind])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TooMuch(f"a part that is no evidence: {str(error)[:200]}") from error
        self._values[name] = kind, _compact(kind, value), len(text)
        return len(text)

    def trim(self) -> None:
        """Forgets what was used longest ago, as far as there is too much."""
        size = sum(size for _, _, size in self._values.values())
        while size > _KEPT_BYTES:
            size -= self._values.popitem(last=False)[1][2]
        known = self._values.keys()
        self._whole = {key: whole for key, whole in self._whole.items() if known >= set(key[:2])}

    def open(self, parcel: Parcel) -> Evidence:
        """Raises TooMuch."""
        seen = parcel.evidence
        own = self._value(parcel.own, "own")
        if not len(parcel.ranks) == len(seen.ranks) == len(own):
            raise TooMuch("a parcel whose parts are of other ranks")
        ranks = tuple(self._rank(rest, parcel, at) for at, rest in enumerate(seen.ranks))
        opened = replace(seen, ranks=ranks, sources=self._value(parcel.sources, "sources"))
        too_much = beyond_any_job(opened)
        if too_much is not None:
            raise TooMuch(f"a parcel that names {too_much}")
        return opened

    def _rank(self, rest: RankEvidence, parcel: Parcel, at: int) -> RankEvidence:
        parts = parcel.ranks[at]
        if not parts.fields.keys() <= _FIELDS.keys():
            raise TooMuch("a parcel with parts that nobody knows")
        progress = rest.progress
        if progress is not None:
            groups = self._value(parts.called_groups, "groups") if parts.called_groups is not None else ()
            calls: tuple[Call, ...] = self._sequence(parts.calls, parcel.own, at, Call)
            progress = replace(progress, calls=calls, groups=groups)
        return replace(
            rest,
            progress=progress,
            collectives=self._sequence(parts.collectives, parcel.own, at, Collective),
            stacks=tuple(map(self._stack, parts.stacks)),
            earlier_stacks=tuple(map(self._stack, parts.earlier_stacks)),
            **{field: self._value(name, _FIELDS[field]) for field, name in parts.fields.items()},
        )

    def _stack(self, sample: Sample) -> StackSample:
        threads: tuple[Thread, ...] = self._value(sample.threads, "threads")
        if len(threads) != len(sample.numbers):
            raise TooMuch("a stack with other threads than its part has")
        numbered = tuple(replace(t, tid=number) for t, number in zip(threads, sample.numbers, strict=True))
        return StackSample(sample.at, numbered, sample.source)

    def _sequence(self, name: str | None, own: str, at: int, type_: type[E]) -> tuple[E, ...]:
        if name is None:
            return ()
        kind = "calls" if type_ is Call else "collectives"
        common: Common[E] = self._value(name, kind)
        key = name, own, at
        if key not in self._whole:
            columns: tuple[Column, ...] | None = self._value(own, "own")[at][kind == "collectives"]
            if columns is None or common.length > MOST_CALLS or any(len(each) != common.length for each in columns):
                raise TooMuch("a sequence of calls that is longer, or shorter, than it can be")
            # Reads like the tuple that the model says; made only where somebody looks at it.
            self._whole[key] = cast("tuple[E, ...]", Unfolding(common, columns))
        return self._whole[key]

    def _value(self, name: str, kind: str) -> Any:
        found = self._values.get(name)
        if found is None or found[0] != kind:
            raise TooMuch("a parcel of which a part is missing")
        self._values.move_to_end(name)
        return found[1]


def _compact(kind: str, value: Any) -> Any:
    """As it is kept: of thousands of ranks. Raises TooMuch."""
    if kind == "calls":
        return Common(value, Call)
    if kind == "collectives":
        return Common(value, Collective)
    if kind != "own":
        return value
    try:
        return tuple((_columns(calls, OWN_OF_CALL), _columns(entries, OWN_OF_COLLECTIVE)) for calls, entries in value)
    except OverflowError as error:
        raise TooMuch("a part with numbers that nobody counts to") from error


def _columns(own: tuple[list[Any], ...] | None, names: tuple[str, ...]) -> tuple[Column, ...] | None:
    if own is None:
        return None
    return tuple(
        numbers(values) if name in ("thread", "record_id") else times(values)
        for name, values in zip(names, own, strict=True)
    )
