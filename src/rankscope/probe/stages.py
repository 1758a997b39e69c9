"""Stages: what a rank is doing, by name, written to its page as it begins and ends.

A stage is recorded whether anybody prints it or not: the launcher reads the page and decides what to show, and after
the rank's death it is still there.
"""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from rankscope.probe.page import FAILED, STAGE_ALWAYS, STAGE_ANNOUNCED, STAGE_TEXTS, Page
from rankscope.probe.sites import Sites

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
NO_MEMORY = (0, 0)
_MOST_TEXTS = 1000


class OpenStage(NamedTuple):
    """A stage that has begun."""

    index: int
    kind: str
    bits: int
    stack: list[Any]
    """The open stages of its thread."""
    frame_id: int
    """Of the constructor whose return ends the stage; 0 where the stage is ended by its own wrapper."""


_new_stage = tuple.__new__


class StageBook:
    """The stages of this process. Nothing here raises: a fault is noted on the page, and stages end there."""

    def __init__(self, page: Page, sites: Sites) -> None:
        self._page = page
        self._sites = sites
        self._open: dict[int, list[OpenStage]] = {}
        self._texts: dict[tuple[str, str, str, str], bytes] = {}
        self._setting_up = True
        self._finished = False
        self.enabled = True

    def begin(
        self,
        label: str,
        words: str,
        kind: str,
        frame: FrameType | None,
        *,
        note: str = "",
        announce: bool = False,
        frame_id: int = 0,
    ) -> OpenStage | None:
        """`label` is what is being called, `words` what is said once it is done. None inside one of the same kind."""
        if not self.enabled:
            return None
        try:
            thread = _thread.get_ident()
            stack = self._open.get(thread)
            if stack is None:
                stack = self._open[thread] = []
            elif stack:
                if stack[-1].frame_id:
                    self._close_returned(stack, frame)
                if kind and _has(stack, kind):
                    return None
            bits = STAGE_ANNOUNCED if announce else 0
            memory = read_memory() if announce or self._setting_up else NO_MEMORY
            texts = self._texts.get((label, words, kind, note)) or self._number(label, words, kind, note)
            index = self._page.begin_stage(texts, self._sites.number(frame), thread, memory, bits)
            stage = _new_stage(OpenStage, (index, kind, bits, stack, frame_id))
            stack.append(stage)
            return stage
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self._give_up(error)
            return None

    def end(self, stage: OpenStage | None, *, failed: bool = False) -> None:
        if stage is None:
            return
        try:
            index, _, bits, stack, _ = stage
            if stack and stack[-1] is stage:
                stack.pop()
            elif not _take_out(stack, stage):
                return  # ended already
            memory = read_memory() if bits or self._setting_up else NO_MEMORY
            self._page.end_stage(index, memory, bits | FAILED if failed else bits)
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self._give_up(error)

    def mark(self, words: str, kind: str, frame: FrameType | None, *, note: str = "", always: bool = False) -> None:
        """Something that is done the moment it is told."""
        if not self.enabled:
            return
        try:
            page = self._page
            thread = _thread.get_ident()
            stack = self._open.get(thread)
            if stack and stack[-1].frame_id:
                self._close_returned(stack, frame)
            memory = read_memory() if always or self._setting_up else NO_MEMORY
            bits = STAGE_ALWAYS if always else 0
            texts = self._texts.get((words, words, kind, note)) or self._number(words, words, kind, note)
            page.end_stage(page.begin_stage(texts, self._sites.number(frame), thread, memory, bits), memory, bits)
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self._give_up(error)

    def _number(self, label: str, words: str, kind: str, note: str) -> bytes:
        text = self._page.text
        numbers = STAGE_TEXTS.pack(text(label), text(words), text(kind), text(note))
        # Notes may be of any number: those of a program that never ends are not all remembered.
        if len(self._texts) < _MOST_TEXTS:
            self._texts[label, words, kind, note] = numbers
        return numbers

    def inside(self, kind: str) -> bool:
        """Whether this thread is in a stage of that kind."""
        return _has(self._open.get(_thread.get_ident(), []), kind)

    @property
    def setting_up(self) -> bool:
        """Until the first optimizer step is made."""
        return self._setting_up

    def end_set_up(self) -> None:
        self._setting_up = False
        self._page.end_set_up()

    def declare_step(self, number: int) -> None:
        """The program counts its steps itself: with the first of them done, the set-up is over."""
        try:
            self._page.declare_step(number)
            if self._setting_up and number > 0:
                self.mark("First step done", "first step", None)
                self.end_set_up()
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self._give_up(error)

    def training_finished(self) -> None:
        """Once, for programs that have no trainer to tell it."""
        if not self._finished:
            self._finished = True
            self.mark("Training finished", "finished", None)

    def note_finished(self) -> None:
        """A trainer has told it."""
        self._finished = True

    def _close_returned(self, stack: list[OpenStage], frame: FrameType | None) -> None:
        """Constructors whose frame is gone have returned, though something still holds the frame."""
        alive = set()
        while frame is not None:
            alive.add(id(frame))
            frame = frame.f_back
        while stack and stack[-1].frame_id and stack[-1].frame_id not in alive:
            self.end(stack[-1])

    def _give_up(self, error: Exception) -> None:
        self.enabled = False
        self._page.error(f"stages are no longer recorded: {type(error).__name__}: {error}")


def _take_out(stack: list[OpenStage], stage: OpenStage) -> bool:
    """By identity: an open stage holds its own stack, so that comparing two would never end."""
    for at, each in enumerate(stack):
        if each is stage:
            del stack[at]
            return True
    return False


def _has(stack: list[OpenStage], kind: str) -> bool:
    for stage in stack:  # noqa: SIM110  a generator costs more than the loop
        if stage.kind == kind:
            return True
    return False


def read_memory() -> tuple[int, int]:
    """Resident bytes of this process, and bytes that torch has allocated on its GPU (0 without one)."""
    fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        resident = int(os.read(fd, 128).split()[1]) * _PAGE_SIZE
    finally:
        os.close(fd)
    return resident, _gpu_allocated()


def _gpu_allocated() -> int:
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not getattr(cuda, "_initialized", False):
        return 0
    allocated: Callable[[], int] | None = getattr(cuda, "memory_allocated", None)
    return 0 if allocated is None else int(allocated())
