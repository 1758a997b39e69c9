"""The shares of every `all_to_all`: how many elements a rank sends to each member and expects from each.

Backends do not compare them. Where a sender's share is not what the receiver expects, the numbers are wrong from then
on, or somebody waits for ever.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

from rankscope.probe.page import (
    EXCHANGE_HEAD_WORDS,
    EXCHANGE_MEMBERS,
    EXCHANGE_SLOTS,
    EXCHANGE_WORDS,
    EXCHANGES_WORD,
    Page,
)

EXCHANGES = frozenset({"all_to_all", "all_to_all_single"})
_MASK = 0xFFFFFFFFFFFFFFFF
_OF_C10D = ("output", "input", "output_split_sizes", "input_split_sizes")
_FUNCTIONAL = ("self", "output_split_sizes", "input_split_sizes")
_OF_LISTS = ("output_tensor_list", "input_tensor_list")

Shares = tuple[list[int], list[int]]
"""Elements sent to each member, and expected from each."""


class _Group:
    __slots__ = ("key", "receiving", "sending", "size")

    def __init__(self, key: int, me: int, size: int) -> None:
        self.key, self.size = key, size
        self.sending = [_weight(me, other) for other in range(size)]
        self.receiving = [_weight(other, me) for other in range(size)]


class Exchanges:
    """The writing side; groups of more than `EXCHANGE_MEMBERS` ranks are left out."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._groups: dict[tuple[str, str], _Group | None] = {}

    def note(self, group: str, seq: int, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`seq`: how many of the group this call makes."""
        members = self._page.members.get(group)
        if members is None:
            return
        known = self._groups.get((group, members), ...)
        if known is ...:
            known = self._groups[group, members] = self._open(group, members)
        if known is None:
            return
        shares = _shares(op, args, kwargs, known.size)
        if shares is not None:
            self._write(known, seq, *shares)

    def _open(self, group: str, members: str) -> _Group | None:
        ranks = members.split(",")
        if len(ranks) > EXCHANGE_MEMBERS or str(self._page.rank) not in ranks:
            return None
        key = zlib.crc32(f"{group} {members}".encode()) | self._page.text(group) << 32
        return _Group(key, ranks.index(str(self._page.rank)), len(ranks))

    def _write(self, group: _Group, seq: int, sends: list[int], receives: list[int]) -> None:
        words = self._page.words
        number = words[EXCHANGES_WORD]
        at = EXCHANGES_WORD + 1 + number % EXCHANGE_SLOTS * EXCHANGE_WORDS
        balance = sum(map(int.__mul__, sends, group.sending)) - sum(map(int.__mul__, receives, group.receiving))
        words[at] = 0  # who reads it while it changes shall not take it for whole
        words[at + 1], words[at + 2], words[at + 3] = seq, group.size, balance & _MASK
        first = at + EXCHANGE_HEAD_WORDS
        for place, (sent, expected) in enumerate(zip(sends, receives, strict=True), first):
            words[place] = sent
            words[place + EXCHANGE_MEMBERS] = expected
        words[at] = group.key
        words[EXCHANGES_WORD] = number + 1


def _weight(sender: int, receiver: int) -> int:
    """Of a share in the sum over all members: what is sent and expected alike cancels out, and little else does."""
    return zlib.crc32(b"%d to %d" % (sender, receiver)) << 16 | 1


def _shares(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], members: int) -> Shares | None:
    """None where they cannot be told, as while a program is traced."""
    if op == "all_to_all":
        given = dict(zip(_OF_LISTS, args, strict=False)) | kwargs
        sends, receives = (_sizes(given.get(name)) for name in reversed(_OF_LISTS))
    else:
        functional = "self" in kwargs or (bool(args) and (len(args) < 2 or not hasattr(args[1], "shape")))
        given = dict(zip(_FUNCTIONAL if functional else _OF_C10D, args, strict=False)) | kwargs
        if functional and not given.keys() >= set(_FUNCTIONAL):
            return None  # another function that is written down under the same name
        source = given.get("self" if functional else "input")
        sends = _split(source, given.get("input_split_sizes"), members)
        receives = _split(source if functional else given.get("output"), given.get("output_split_sizes"), members)
    if sends is None or receives is None or len(sends) != members or len(receives) != members:
        return None
    return sends, receives


def _sizes(tensors: Any) -> list[int] | None:
    if not isinstance(tensors, (list, tuple)):
        return None
    return [tensor.numel() for tensor in tensors]


def _split(tensor: Any, sizes: Any, members: int) -> list[int] | None:
    """Elements of each share; without sizes all are alike."""
    shape = getattr(tensor, "shape", None)
    if not shape:
        return None
    if sizes is None or (isinstance(sizes, (list, tuple)) and not sizes):
        return None if shape[0] % members else [tensor.numel() // members] * members
    if not isinstance(sizes, (list, tuple)) or not all(type(size) is int and size >= 0 for size in sizes):
        return None
    row = math.prod(shape[1:])
    return [size * row for size in sizes]
