"""A running fingerprint of each process group's calls, on the page: the launcher compares ranks by it while they run.

NCCL pairs calls that do not belong together and goes on. What was called (operation, size, dtype, root) and from where
is summed up after every call, so that two ranks differ from the first call on in which they differed. The sum is
linear: whoever has found a difference to be harmless can go on comparing from there.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from rankscope.probe.page import (
    COARSE_SLOTS,
    COARSE_STEP,
    FINE_SLOTS,
    FINGERPRINT_FACTOR,
    FINGERPRINT_HEAD_WORDS,
    FINGERPRINT_MASK,
    FINGERPRINT_SLOTS,
    FINGERPRINT_WORDS,
    FINGERPRINTS_WORD,
    Page,
)

SIZED = frozenset(
    {
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather",
        "all_gather_into_tensor",
        "_all_gather_base",
        "reduce_scatter_tensor",
        "_reduce_scatter_base",
    }
)
"""Every rank must pass the same number of elements, of the same type."""
ROOTED = frozenset(
    {
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "broadcast_object_list",
        "gather_object",
        "scatter_object_list",
    }
)
_MOST_KNOWN = 4096
"""Kinds of calls that are remembered: a program whose sizes never repeat must not fill the memory."""


class _Group:
    __slots__ = ("at", "calls", "members", "noting", "path", "what")

    def __init__(self, at: int, members: str | None) -> None:
        self.members = members
        self.at = at
        """Where its slot begins, in words of 8 bytes; 0: it has none, and is not compared."""
        self.calls = 0
        self.what = 0
        self.path = 0
        self.noting = False


class Fingerprints:
    """The writing side; `note` is asked for every collective that comes from outside."""

    def __init__(self, page: Page, dtypes: Mapping[int, str]) -> None:
        self._page = page
        self._dtypes = dtypes
        self._groups: dict[str, _Group] = {}
        self._known: dict[tuple[str, int, int, int, str], int] = {}

    def note(
        self, group: str, seq: int, op: str, numel: int, dtype: int, peer: int, site: int, reduces: str = ""
    ) -> None:
        """`seq`: how many of the group this call makes; `dtype` and `site` by their numbers on the page; `reduces`:
        SUM, MAX and the like, with the shape of a matrix."""
        state = self._groups.get(group) or self._open(group)
        if not state.at:
            return
        if state.noting or seq != state.calls + 1:
            self._give_up(state)  # two threads at once: nobody knows whose call came first
            return
        state.noting = True
        key = (op, numel, dtype, peer, reduces)
        call = self._known.get(key)
        if call is None:
            call = self._learn(key)
        page = self._page
        state.what = what = (state.what * FINGERPRINT_FACTOR + call) & FINGERPRINT_MASK
        state.path = path = (state.path * FINGERPRINT_FACTOR + page.site_sums.get(site, 0)) & FINGERPRINT_MASK
        at, words = state.at, page.words
        words[at + FINGERPRINT_HEAD_WORDS + seq % FINE_SLOTS] = value = what << 32 | path
        if not seq % COARSE_STEP:
            words[at + FINGERPRINT_HEAD_WORDS + FINE_SLOTS + seq // COARSE_STEP % COARSE_SLOTS] = value
        words[at + 1] = state.calls = seq
        state.noting = False

    def group_made(self, group: str) -> None:
        """A name may be given again, to other ranks: its calls are then no longer counted alike, and not compared."""
        state = self._groups.get(group)
        if state is not None and state.at and state.members != self._page.members.get(group):
            self._give_up(state)

    def _learn(self, key: tuple[str, int, int, int, str]) -> int:
        op, numel, dtype, peer, reduces = key
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        sized = f"{numel} {self._dtypes.get(dtype, '')}" if op in SIZED else ""
        text = f"{op} {sized} {peer if op in ROOTED else ''} {reduces}"
        call = self._known[key] = zlib.crc32(text.encode())
        return call

    def _open(self, group: str) -> _Group:
        """A group whose members are not known is not compared: others may have the same name."""
        members = self._page.members.get(group)
        words = self._page.words
        number = words[FINGERPRINTS_WORD]
        if members is None or number >= FINGERPRINT_SLOTS:
            at = 0
        else:
            at = FINGERPRINTS_WORD + 1 + number * FINGERPRINT_WORDS
            words[at + 1] = 0
            words[at] = zlib.crc32(f"{group} {members}".encode()) | self._page.text(group) << 32
            words[FINGERPRINTS_WORD] = number + 1
        state = self._groups[group] = _Group(at, members)
        return state

    def _give_up(self, state: _Group) -> None:
        self._page.words[state.at] = 0
        state.at = 0
