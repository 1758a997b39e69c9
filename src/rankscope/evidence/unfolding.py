"""Calls of many ranks in little memory: what ranks have in common is kept once, their own times in columns.

Thousands of ranks make the same calls at other times. As objects these are hundreds of bytes a call, of which the times
are sixteen. Here an entry is put together when somebody looks at it; those of the ranks looked at last are kept.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import repeat
from math import isnan
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from rankscope.evidence.model import Call, Collective

E = TypeVar("E", bound=Call | Collective)
OWN_OF_CALL = ("thread", "entered_at", "left_at")
OWN_OF_COLLECTIVE = ("thread", "record_id", "created_at", "completed_at", "started_at")
"""What differs from rank to rank where they do the same."""
_KEPT = 1 << 12
"""Entries of ranks looked at last, a megabyte: a rule that asks one rank twice does not pay twice."""
_NONE = float("nan")
"""Stands for None in a column of times: JSON, from which they come, has no such number."""


class Column(Protocol):
    """The values of one field, entry by entry."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, at: int, /) -> Any: ...


class Common(Generic[E]):
    """A sequence without what is each rank's own; field by field, as entries are made of it."""

    __slots__ = ("columns", "length", "own", "type")

    def __init__(self, entries: Sequence[E], type_: type[E]) -> None:
        names = type_.__struct_fields__
        self.type = type_
        self.length: int = len(entries)
        self.own = tuple(names.index(name) for name in (OWN_OF_CALL if type_ is Call else OWN_OF_COLLECTIVE))
        """Which of the columns are of each rank's own."""
        self.columns: list[Column] = [tuple(getattr(entry, name) for entry in entries) for name in names]


class Unfolding(Sequence[E]):
    """The sequence of one rank: reads like a tuple of its entries, and is equal to it."""

    __slots__ = ("__weakref__", "_common", "_own")

    def __init__(self, common: Common[E], own: Sequence[Column]) -> None:
        """`own`: the rank's own columns, in the order of OWN_OF_CALL or OWN_OF_COLLECTIVE, as long as the sequence."""
        self._common = common
        self._own = own

    def entries(self) -> tuple[E, ...]:
        return _recent.entries(self)

    def made(self) -> tuple[E, ...]:
        """All entries, anew."""
        return self._some(range(self._common.length))

    def _some(self, places: range) -> tuple[E, ...]:
        # Field by field and not entry by entry: so it is done in C.
        columns = self._common.columns.copy()
        for place, column in zip(self._common.own, self._own, strict=True):
            columns[place] = column
        if places != range(self._common.length):
            columns = [tuple([column[at] for at in places]) for column in columns]
        return tuple(map(self._common.type, *columns))

    def __len__(self) -> int:
        return self._common.length

    def __iter__(self) -> Iterator[E]:
        return iter(self.entries())

    def __reversed__(self) -> Iterator[E]:
        return reversed(self.entries())

    @overload
    def __getitem__(self, at: int) -> E: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[E, ...]: ...
    def __getitem__(self, at: int | slice) -> E | tuple[E, ...]:
        known = _recent.known(self)
        if known is not None:
            return known[at]
        places = range(self._common.length)[at]
        return self._some(places) if isinstance(places, range) else self._some(range(places, places + 1))[0]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return self.entries() == (other.entries() if isinstance(other, Unfolding) else other)

    def __hash__(self) -> int:
        return hash(self.entries())

    def __add__(self, other: tuple[E, ...]) -> tuple[E, ...]:
        return (*self.entries(), *other)

    def __radd__(self, other: tuple[E, ...]) -> tuple[E, ...]:
        return (*other, *self.entries())

    def __repr__(self) -> str:
        return repr(self.entries())


class _Recent:
    """The entries of those sequences that were asked last."""

    def __init__(self) -> None:
        self._made: OrderedDict[int, tuple[Unfolding[Any], tuple[Any, ...]]] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def known(self, sequence: Unfolding[Any]) -> tuple[Any, ...] | None:
        found = self._made.get(id(sequence))
        return found[1] if found is not None and found[0] is sequence else None

    def entries(self, sequence: Unfolding[Any]) -> tuple[Any, ...]:
        known = self.known(sequence)
        if known is not None:
            return known
        entries: tuple[Any, ...] = sequence.made()
        with self._lock:
            if id(sequence) not in self._made:
                self._made[id(sequence)] = sequence, entries
                self._count += len(entries)
            while self._count > _KEPT and len(self._made) > 1:
                self._count -= len(self._made.popitem(last=False)[1][1])
        return entries


_recent = _Recent()


def times(values: list[float | None]) -> Column:
    """A column of times, as small as it can be."""
    if values.count(None) == len(values):
        return _Same(None, len(values))
    if None in values:
        return _Times(values)
    return array("d", cast("list[float]", values))


def numbers(values: list[int]) -> Column:
    """A column of whole numbers. Raises OverflowError for one that no computer counts to."""
    if not values:
        return ()
    first = values[0]
    if values.count(first) == len(values):
        return _Same(first, len(values))
    if values == list(range(first, first + len(values))):
        return range(first, first + len(values))
    return array("q", values)


class _Times:
    """Times of which some are not there."""

    __slots__ = ("_values",)

    def __init__(self, values: list[float | None]) -> None:
        self._values = array("d", [_NONE if value is None else value for value in values])

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[float | None]:
        return iter([None if isnan(value) else value for value in self._values])

    def __getitem__(self, at: int, /) -> float | None:
        value = self._values[at]
        return None if isnan(value) else value


class _Same:
    """One value, many times."""

    __slots__ = ("_length", "_value")

    def __init__(self, value: object, length: int) -> None:
        self._value = value
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return repeat(self._value, self._length)

    def __getitem__(self, _at: int, /) -> Any:
        return self._value
