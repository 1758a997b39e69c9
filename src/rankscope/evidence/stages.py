"""Reads the stages off a beacon page: all at once for the evidence, or what is new for whoever prints them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import msgspec

from rankscope.errors import EvidenceError
from rankscope.evidence.model import Progress, Stage
from rankscope.evidence.page_heap import Heap
from rankscope.mask import mask_text
from rankscope.probe import page as layout

NEWEST = 64
"""Stages kept in the evidence."""
_VARIABLE = re.compile(r"(?:^|, )([A-Z][A-Z0-9_]*)=(.*?)(?=, [A-Za-z][\w ]*=|, [A-Z][A-Z0-9_]* unset|$)")
_FEW = 4
"""New stages that are read one by one; of more, the whole ring is read at once."""


class StageFields(TypedDict):
    stages: tuple[Stage, ...]
    stages_passed: int
    set_up_over: bool
    declared_step: int | None


def read_stages(data: bytes, heap: Heap) -> StageFields:
    """The part of `Progress` that is about stages."""
    begun, passed, over, step = layout.STAGES_HEAD.unpack_from(data, layout.STAGES_OFFSET)
    found = []
    # Long ones may have begun long ago: what the rank is in is always kept.
    for index in range(max(0, begun - layout.STAGE_SLOTS), begun):
        at = layout.STAGE_RING_OFFSET + (index % layout.STAGE_SLOTS) * layout.STAGE_BYTES
        stage = _stage(index, data[at : at + layout.STAGE_BYTES], heap)
        if stage.left_at is None or index >= begun - NEWEST:
            found.append(stage)
    return StageFields(
        stages=tuple(found),
        stages_passed=passed,
        set_up_over=bool(over),
        declared_step=step if step >= 0 else None,
    )


def current_stage(progress: Progress) -> Stage | None:
    """The innermost stage that the rank is in; None between stages."""
    return innermost(progress.stages)


def innermost(stages: tuple[Stage, ...] | list[Stage]) -> Stage | None:
    inside = [stage for stage in stages if stage.left_at is None]
    return inside[-1] if inside else None


def variables_told(stages: Sequence[Stage]) -> dict[str, str]:
    """Variables of the environment that the rank told of after its start, as it told them last."""
    found: dict[str, str] = {}
    for stage in stages:
        if stage.kind == "status":
            found.update((match[1], match[2]) for match in _VARIABLE.finditer(stage.note))
    return found


class NewStages(msgspec.Struct, frozen=True):
    """What changed on a page since the last look."""

    begun: tuple[Stage, ...]
    """Stages seen for the first time, ended or not."""
    ended: tuple[Stage, ...]
    """Stages that had been seen and have ended since."""
    missed: int
    """Stages that were overwritten before anybody looked."""
    passed: int
    set_up_over: bool


class StageReader:
    """Follows the stages of one page. Cheap when nothing has happened: two small reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._heap = Heap()
        self._seen = 0
        self._open: dict[int, Stage] = {}

    def read(self) -> NewStages:
        """Raises EvidenceError where the page cannot be read."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return self._read(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise EvidenceError(f"{self._path}: {error.strerror}") from error

    def _read(self, fd: int) -> NewStages:
        head = os.pread(fd, layout.STAGES_HEAD.size, layout.STAGES_OFFSET)
        if len(head) < layout.STAGES_HEAD.size:
            return NewStages((), (), 0, 0, False)  # the process has only just made the file
        begun, passed, over, _ = layout.STAGES_HEAD.unpack(head)
        first = max(self._seen, begun - layout.STAGE_SLOTS)
        wanted = [*(index for index in self._open if index >= begun - layout.STAGE_SLOTS), *range(first, begun)]
        gone = [index for index in self._open if index < begun - layout.STAGE_SLOTS]
        for index in gone:
            del self._open[index]
        if not wanted:
            return NewStages((), (), 0, passed, bool(over))
        size = layout.STAGE_BYTES
        many = len(wanted) > _FEW
        ring = os.pread(fd, layout.STAGE_SLOTS * size, layout.STAGE_RING_OFFSET) if many else b""
        records = {}
        for index in wanted:
            at = index % layout.STAGE_SLOTS * size
            records[index] = ring[at : at + size] if ring else os.pread(fd, size, layout.STAGE_RING_OFFSET + at)
        used = min(layout.IDENTITY.unpack(os.pread(fd, layout.IDENTITY.size, 0))[4], layout.HEAP_BYTES)
        if used > self._heap.bytes_read:
            self._heap.extend(os.pread(fd, used - self._heap.bytes_read, layout.HEAP_OFFSET + self._heap.bytes_read))
        new, ended = [], []
        for index, record in records.items():
            stage = _stage(index, record, self._heap)
            if index not in self._open:
                new.append(stage)
            elif stage.left_at is not None:
                ended.append(stage)
            if stage.left_at is None:
                self._open[index] = stage
            else:
                self._open.pop(index, None)
        missed, self._seen = first - self._seen, begun
        return NewStages(tuple(new), tuple(ended), missed, passed, bool(over))


def _stage(index: int, record: bytes, heap: Heap) -> Stage:
    entered, memory, gpu, label, words, kind, note, site, thread = layout.STAGE_BEGUN.unpack_from(record, 0)
    left, memory_after, gpu_after, number, bits = layout.STAGE_ENDED.unpack_from(record, layout.STAGE_BEGUN.size)
    return Stage(
        index=index,
        label=heap.text(label),
        words=heap.text(words),
        kind=heap.text(kind),
        note=mask_text(heap.text(note)) if note else "",
        entered_at=entered / 1e9,
        left_at=left / 1e9 if left else None,
        number=number,
        failed=bool(bits & layout.FAILED),
        announced=bool(bits & layout.STAGE_ANNOUNCED),
        always=bool(bits & layout.STAGE_ALWAYS),
        thread=thread,
        memory_before=memory,
        memory_after=memory_after,
        gpu_before=gpu,
        gpu_after=gpu_after,
        site=heap.site(site),
    )
