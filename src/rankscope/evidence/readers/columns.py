"""A flight record as columns: what calls of all ranks have in common is kept once, numbers stay packed.

A dump holds thousands of calls, most of them of a few dozen kinds. Reading thousands of dumps is only cheap when no
object is made per call.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import msgspec

from rankscope.evidence.flight import (
    as_frame,
    as_groups,
)
from rankscope.evidence.model import Collective, Frame, Group

STATES = ("scheduled", "started", "completed")
RETIRED = 4
"""Flag beside the number of the state."""


class Kind(msgspec.Struct, frozen=True):
    """What a call is, apart from when it was made: two ranks that do the same thing share it."""

    group: str
    op: str
    backend: str
    p2p: bool
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    timeout_ms: int | None
    frames: tuple[Frame, ...]
    """Of the user's code only, innermost first; all where none is the user's."""


class Columns(msgspec.Struct, frozen=True):
    """One rank's record, oldest call first; `kinds` are numbers of a table that is kept beside it."""

    skipped: int
    """Older calls that were not looked at."""
    first_ns: int
    """When the oldest call was made, one that was skipped included."""
    kinds: array[int]
    seqs: array[int]
    p2p_seqs: array[int]
    records: array[int]
    created_ns: array[int]
    completed_ns: array[int]
    """0 where it has not completed, or nobody looked."""
    flags: bytes
    last_enqueued: dict[str, int]
    last_completed: dict[str, int]
    groups: tuple[Group, ...]
    version: str

    def __len__(self) -> int:
        return len(self.kinds)

    def done(self, at: int, group: str) -> bool:
        """Finished, by the group's own count too: what NCCL has not taken yet it marks as completed."""
        flag = self.flags[at]
        if flag & RETIRED:
            return True
        last = self.last_completed.get(group)
        return STATES[flag & 3] == "completed" and (last is None or last < 0 or last >= self.seqs[at])

    def collective(self, at: int, kind: Kind) -> Collective:
        flag = self.flags[at]
        completed = self.completed_ns[at]
        return Collective(
            record_id=self.records[at],
            group=kind.group,
            seq=self.seqs[at],
            p2p_seq=self.p2p_seqs[at],
            op=kind.op,
            backend=kind.backend,
            p2p=kind.p2p,
            state=STATES[flag & 3],
            retired=bool(flag & RETIRED),
            created_at=self.created_ns[at] / 1e9,
            input_sizes=kind.input_sizes,
            output_sizes=kind.output_sizes,
            input_dtypes=kind.input_dtypes,
            output_dtypes=kind.output_dtypes,
            completed_at=completed / 1e9 if completed else None,
            timeout_ms=kind.timeout_ms,
            frames=kind.frames,
        )


class KindTable(msgspec.Struct):
    """Gives every distinct kind of call a number."""

    kinds: list[Kind] = msgspec.field(default_factory=list)
    _numbers: dict[Kind, int] = msgspec.field(default_factory=dict)
    _frames: dict[tuple[Any, Any, Any], Frame] = msgspec.field(default_factory=dict)
    _groups: dict[tuple[Any, ...], tuple[Group, ...]] = msgspec.field(default_factory=dict)
    _shared: dict[tuple[Group, ...], tuple[Group, ...]] = msgspec.field(default_factory=dict)
    followed: dict[int, tuple[Any, int]] = msgspec.field(default_factory=dict)
    """After a kind: the call that came next in the last dump, as it stands there, and its kind."""
    middles_needless: bool = True
    """Until a dump shows that it must be read in full."""

    def number(self, kind: Kind) -> int:
        found = self._numbers.get(kind)
        if found is None:
            found = self._numbers[kind] = len(self.kinds)
            self.kinds.append(kind)
        return found

    def frame(self, item: object) -> Frame:
        """The frame in a dump's form; equal ones of all dumps are one object."""
        try:
            if len(item) != 3:  # type: ignore[arg-type]
                return as_frame(item)
            key = (item["name"], item["filename"], item["line"])  # type: ignore[index]
            found = self._frames.get(key)
        except (KeyError, TypeError):
            return as_frame(item)
        if found is None:
            found = self._frames[key] = as_frame(item)
        return found

    def groups(self, config: object) -> tuple[Group, ...]:
        """The process groups of a dump. The ranks of a large job are a long text, the same in every dump."""
        key = _as_key(config)
        found = self._groups.get(key) if key is not None else None
        if found is None:
            found = as_groups(config)
            if key is not None:
                self._groups[key] = found
        return found

    def shared_groups(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """The same groups, as the one object that all dumps share."""
        return self._shared.setdefault(groups, groups)

    def adopt(self, kinds: Iterable[Kind]) -> list[int]:
        """The numbers here of another table's kinds, in its order."""
        return [self.number(kind) for kind in kinds]


def _as_key(config: object) -> tuple[Any, ...] | None:
    """Equal for equal configurations; None for one that is not as torch writes it, of names and texts."""
    if not isinstance(config, dict):
        return None
    parts: list[Any] = []
    for name, entry in config.items():
        if not isinstance(name, str | int) or not isinstance(entry, dict):
            return None
        values = (entry.get("name"), entry.get("desc"), entry.get("ranks"))
        if not all(isinstance(value, str | int | None) for value in values):
            return None
        parts.append((name, *values))
    return tuple(parts)
