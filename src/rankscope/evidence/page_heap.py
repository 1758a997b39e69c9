"""The heap of texts, call sites, groups and exceptions in a beacon page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from rankscope.evidence.model import (
    EarlierException,
    Frame,
    Group,
    HeldMemory,
    HeldTensors,
    NonFinite,
    RaisedException,
)
from rankscope.mask import mask_text
from rankscope.probe import page as layout
from rankscope.whose_code import is_user_file

T = TypeVar("T")
_SOURCES = {layout.EXCEPTION: "hook", layout.EXCEPTION_AT_EXIT: "exit", layout.EXCEPTION_OF_THREAD: "thread"}
_FREE_TEXTS = (layout.TEXT, layout.ERROR)
"""What the program says in its own words: names of stages, notes, errors. The others hold texts among their parts."""


class Heap:
    """What other parts of a page refer to by number. It only grows: a reader that comes again reads on."""

    def __init__(self) -> None:
        self._entries: list[tuple[bytes, str]] = []
        self.bytes_read = 0
        self._sites: dict[int, tuple[tuple[Frame, ...], str]] = {}
        self._damaged: set[int] = set()

    def extend(self, data: bytes) -> None:
        """Takes whole entries from the bytes that follow those read so far; what is cut off comes next time."""
        at = 0
        while at + layout.HEAP_ENTRY.size <= len(data):
            kind, length = layout.HEAP_ENTRY.unpack_from(data, at)
            start = at + layout.HEAP_ENTRY.size
            if start + length > len(data):
                break
            text = data[start : start + length].decode("utf-8", "replace")
            self._entries.append((kind, mask_text(text) if kind in _FREE_TEXTS else text))
            at = start + length
        self.bytes_read += at

    def text(self, number: int) -> str:
        if 0 < number < len(self._entries) and self._entries[number][0] == layout.TEXT:
            return self._entries[number][1]
        return ""

    def site(self, number: int) -> tuple[Frame, ...]:
        return self._site(number)[0]

    def through(self, number: int) -> str:
        """The library's function that the site's innermost frame called; empty where it made the call itself."""
        return self._site(number)[1]

    def _site(self, number: int) -> tuple[tuple[Frame, ...], str]:
        known = self._sites.get(number)
        if known is None:
            known = (), ""
            if 0 < number < len(self._entries) and self._entries[number][0] == layout.SITE:
                parts = self._entries[number][1].split(layout.SEPARATOR)
                known = _site_frames(parts), parts[-1] if len(parts) % 3 == 1 else ""
            self._sites[number] = known
        return known

    def program(self) -> tuple[str, ...]:
        """Where the program itself lies, if it was installed like a library."""
        told = self._of(layout.PROGRAM)
        return tuple(told[-1].split(layout.SEPARATOR)) if told else ()

    def trackers(self) -> tuple[tuple[str, str, str], ...]:
        """Kind, place and run of each; they may hold secrets, and are for nobody but their owner."""
        found = (payload.split(layout.SEPARATOR) for payload in self._of(layout.TRACKER))
        return tuple(dict.fromkeys((each[0], each[1], each[2]) for each in found if len(each) == 3))

    def groups(self) -> tuple[Group, ...]:
        return tuple({group.name: group for group in self._readable((layout.GROUP,), _group)}.values())

    def exceptions(self, *, work_failed: bool = False) -> tuple[RaisedException, ...]:
        """`work_failed`: one that ended the work of a process that stays still counts. Otherwise somebody caught it."""
        of_work = (layout.EXCEPTION_OF_WORK,) if work_failed else ()
        return tuple(self._readable((*_SOURCES, *of_work), _raised))

    def non_finite(self) -> tuple[NonFinite, ...]:
        return tuple(self._readable((layout.NON_FINITE,), _non_finite))

    def held(self) -> HeldMemory | None:
        told = self._readable((layout.HELD,), _held)
        return told[-1] if told else None

    def errors(self) -> tuple[str, ...]:
        """What failed inside the probe; and that entries read so far make no sense, as after a wild write."""
        damaged = f"{len(self._damaged)} entries of this rank's page are damaged: something wrote into its memory"
        return (*self._of(layout.ERROR), *((damaged,) if self._damaged else ()))

    def _readable(self, kinds: tuple[bytes, ...], read: Callable[[bytes, str], T]) -> list[T]:
        """Damaged ones are left out, and counted: what else the page tells is worth more than none of it."""
        found = []
        for number, (kind, payload) in enumerate(self._entries):
            if kind not in kinds:
                continue
            try:
                found.append(read(kind, payload))
            except (ValueError, OverflowError):
                self._damaged.add(number)
        return found

    def _of(self, kind: bytes) -> list[str]:
        return [payload for entry, payload in self._entries if entry == kind]


def _group(_kind: bytes, payload: str) -> Group:
    name, description, ranks = (*payload.split(layout.SEPARATOR), "", "")[:3]
    return Group(name=name, description=description, ranks=tuple(int(rank) for rank in ranks.split(",") if rank))


def _non_finite(_kind: bytes, payload: str) -> NonFinite:
    kind, step, at, value, names, count, local, detail, *frames = payload.split(layout.SEPARATOR)
    return NonFinite(
        kind=kind,
        step=int(step),
        at=int(at) / 1e9,
        value=value,
        tensors=tuple(filter(None, names.split(", "))),
        count=int(count),
        local=local == "1",
        detail=mask_text(detail),
        site=_site_frames(frames),
    )


def _held(_kind: bytes, payload: str) -> HeldMemory:
    allocated, reserved, in_python, kinds, *rest = payload.split(layout.SEPARATOR)
    end = 3 * int(kinds)
    tensors, lines = rest[:end], rest[end:]
    return HeldMemory(
        allocated=int(allocated),
        reserved=int(reserved),
        in_python=int(in_python),
        tensors=tuple(
            HeldTensors(int(count), kind, int(size))
            for kind, count, size in zip(tensors[0::3], tensors[1::3], tensors[2::3], strict=True)
        ),
        lines=tuple(
            (file, int(line), int(size)) for file, line, size in zip(lines[0::3], lines[1::3], lines[2::3], strict=True)
        ),
    )


def _raised(entry: bytes, payload: str) -> RaisedException:
    own, *earlier = payload.split(layout.EARLIER)
    kind, message, at, thread, *frames = own.split(layout.SEPARATOR)
    return RaisedException(
        type=kind,
        message=mask_text(message),
        at=int(at) / 1e9,
        frames=frames_of(frames),
        source=_SOURCES.get(entry, "hook"),
        thread=thread,
        chain=tuple(map(_earlier, earlier)),
    )


def _earlier(payload: str) -> EarlierException:
    led, kind, message, *frames = payload.split(layout.SEPARATOR)
    return EarlierException(kind, mask_text(message), frames_of(frames), led)


def frames_of(parts: list[str]) -> tuple[Frame, ...]:
    return tuple(
        Frame(function=function, file=file, line=int(line) if line.isdigit() else 0, user=is_user_file(file))
        for file, line, function in zip(parts[0::3], parts[1::3], parts[2::3], strict=False)
    )


def _site_frames(parts: list[str]) -> tuple[Frame, ...]:
    """Of a site the probe wrote the user's frames alone."""
    return tuple(replace(frame, user=True) for frame in frames_of(parts))
