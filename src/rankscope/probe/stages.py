"""Stages: what a rank is doing, by name, written to its page as it begins and ends.

A stage is recorded whether anybody prints it or not: the launcher reads the page and decides what to show, and after
the rank's death it is still there.
"""

from __future__ import annotations

import _thread
import itertools
import os
import struct
import sys
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from rankscope.probe.page import (
    COUNTERS_OFFSET,
    COUNTERS_WORD,
    FAILED,
    STAGE_ALWAYS,
    STAGE_ANNOUNCED,
    STAGE_BEGUN,
    STAGE_BYTES,
    STAGE_ENDED,
    STAGE_RECORD,
    STAGE_RING_OFFSET,
    STAGE_RING_WORD,
    STAGE_SLOTS,
    STAGE_TAIL,
    STAGE_TEXTS,
    STAGE_WORDS,
    STAGES_OFFSET,
    STAGES_WORD,
    Page,
)
from rankscope.probe.shortcuts import quick
from rankscope.probe.sites import Sites, is_whole_site

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
_ENDED_AT = STAGE_RING_OFFSET + STAGE_BEGUN.size
_ENDED_WORD = STAGE_RING_WORD + STAGE_BEGUN.size // 8
_NUMBER_WORD = STAGE_RING_WORD + STAGE_WORDS - 1
_BEHIND_TIME = STAGE_RING_OFFSET + 8
_AFTER_RECORD = STAGE_RING_OFFSET + STAGE_BYTES
_SET_UP_OVER = 1 << 32
_NO_NUMBER = FAILED | STAGE_ALWAYS
_now = time.time_ns
_thread_id = _thread.get_ident
_pack_stage = STAGE_RECORD.pack_into
_pack_end = STAGE_ENDED.pack_into
_pack_u64 = struct.Struct("<Q").pack_into
_pack_u32 = struct.Struct("<I").pack_into
_MOST_TEXTS = 1000
_MOST_USUAL = 1000

Usual = tuple[str, str, str, int, CodeType | None, CodeType | None, int, bytes]
"""A stage as it was begun or marked last: words, kind and note, thread, code of its caller (None where that does not
tell the site), code and instruction of the caller's caller, and its record behind the time. One that comes from the
same line again is written in one piece."""

OpenStage = tuple[int, str, int, list[Any], int]
"""A stage that has begun: index, kind, bits, the open stages of its thread, and the identity of the frame of the
constructor whose return ends it (0 where its own wrapper does). Compared by identity only. A bare tuple: a stage must
cost next to nothing."""


class StageBook:
    """The stages of this process. Nothing here raises: a fault is noted on the page, and stages end there.

    None of its parameters is keyword-only: Python 3.11 calls functions that have some twice as slowly.
    """

    def __init__(self, page: Page, sites: Sites) -> None:
        self._page = page
        self._sites = sites
        self._open: dict[int, list[OpenStage]] = {}
        self._begun = itertools.count()
        self._passed = itertools.count(1)
        self._texts: dict[tuple[str, str, str, str], bytes] = {}
        self._usual: dict[tuple[str, int], Usual] = {}
        """By label, and the instruction of its caller."""
        self._setting_up = True
        self._finished = False
        self.kinds: set[str] = set()
        """Of the stages that were begun or marked while the program set itself up."""
        self.enabled = True
        self._ledger = self._new_ledger()

    def _new_ledger(self) -> Any:
        """What the shortcuts need; None where there are none."""
        if quick is None:
            return None
        ledger = quick.Ledger(
            book=self,
            open=self._open,
            begun=self._begun,
            passed=self._passed,
            counters=COUNTERS_WORD,
            stages=STAGES_WORD,
            ring=STAGE_RING_WORD,
            stage_words=STAGE_WORDS,
            slots=STAGE_SLOTS,
            ended=_ENDED_WORD - STAGE_RING_WORD,
            tail_bytes=STAGE_TAIL.size,
        )
        self._page.follow(ledger.use)
        return ledger

    def begin(
        self,
        label: str,
        words: str,
        kind: str,
        frame: FrameType | None,
        note: str = "",
        announce: bool = False,
        frame_id: int = 0,
    ) -> OpenStage | None:
        """`label` is what is being called, `words` what is said once it is done. None inside one of the same kind."""
        if not self.enabled:
            return None
        try:
            thread = _thread_id()
            stack = self._open.get(thread)
            if stack is None:
                stack = self._open[thread] = []
            elif stack:
                if stack[-1][4]:
                    self._close_returned(stack, frame)
                if kind and _has(stack, kind):
                    return None
            if announce or self._setting_up:
                self.kinds.add(kind)
                bits = STAGE_ANNOUNCED if announce else 0
                index = self._begin_with_memory(label, words, kind, note, thread, frame, bits)
                stage = (index, kind, bits, stack, frame_id)
            else:
                tail = self._tail(label, words, kind, note, thread, frame)
                index, now = next(self._begun), _now()
                page, slot = self._page, index % STAGE_SLOTS
                at = slot * STAGE_BYTES
                page.map[at + _BEHIND_TIME : at + _AFTER_RECORD] = tail
                numbers = page.words
                numbers[STAGE_RING_WORD + slot * STAGE_WORDS] = now
                numbers[STAGES_WORD] = index + 1
                numbers[COUNTERS_WORD] = now
                stage = (index, kind, 0, stack, frame_id)
            stack.append(stage)
            return stage
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self._give_up(error)
            return None

    def end(self, stage: OpenStage | None, failed: bool = False) -> None:
        """A stage that failed gets no number: it was not passed."""
        if stage is None:
            return
        try:
            index, kind, bits, stack, _ = stage
            if kind == "training" and self._page.not_finite:
                failed = True  # a run whose numbers went bad was not finished, whatever its trainer returned
            if stack and stack[-1] is stage:
                stack.pop()
            elif not _take_out(stack, stage):
                return  # ended already
            if bits or failed or self._setting_up:
                self._end_with_memory(index, bits | FAILED if failed else bits)
                return
            number, now = next(self._passed), _now()
            numbers = self._page.words
            if numbers[STAGES_WORD] - index <= STAGE_SLOTS:
                at = index % STAGE_SLOTS * STAGE_WORDS
                numbers[at + _ENDED_WORD] = now
                numbers[at + _NUMBER_WORD] = number
            numbers[STAGES_WORD + 1] = number | _SET_UP_OVER
            numbers[COUNTERS_WORD] = now
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self._give_up(error)

    def mark(self, words: str, kind: str, frame: FrameType | None, note: str = "", always: bool = False) -> None:
        """Something that is done the moment it is told."""
        if not self.enabled:
            return
        try:
            thread = _thread_id()
            stack = self._open.get(thread)
            if stack and stack[-1][4]:
                self._close_returned(stack, frame)
            if always or self._setting_up:
                self._mark_with_memory(words, kind, note, thread, frame, always)
                return
            tail = self._tail(words, words, kind, note, thread, frame)
            number, index, now = next(self._passed), next(self._begun), _now()
            page, slot = self._page, index % STAGE_SLOTS
            at = slot * STAGE_BYTES
            page.map[at + _BEHIND_TIME : at + _AFTER_RECORD] = tail
            numbers, at = page.words, slot * STAGE_WORDS
            numbers[at + STAGE_RING_WORD] = numbers[at + _ENDED_WORD] = now
            numbers[at + _NUMBER_WORD] = number
            numbers[STAGES_WORD] = index + 1
            numbers[STAGES_WORD + 1] = number | _SET_UP_OVER
            numbers[COUNTERS_WORD] = now
        except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
            self._give_up(error)

    def _tail(self, label: str, words: str, kind: str, note: str, thread: int, frame: FrameType | None) -> bytes:
        """The record of a stage that has not ended, behind its time, without figures of memory."""
        usual = None
        if frame is not None:
            lasti = frame.f_lasti
            usual = self._usual.get((label, lasti))
            if usual is not None:
                said, sort, added, caller, code, outer_code, outer_lasti, tail = usual
                outer = frame.f_back
                if (
                    frame.f_code is code
                    and (outer_code is None if outer is None else outer.f_code is outer_code)
                    and (outer is None or outer.f_lasti == outer_lasti)
                    and thread == caller
                    and words == said
                    and kind == sort
                    and note == added
                ):
                    return tail
        texts = self._texts.get((label, words, kind, note)) or self._number(label, words, kind, note)
        site = self._sites.number(frame)
        tail = STAGE_TAIL.pack(0, 0, texts, site, thread & 0xFFFFFFFF, 0, 0, 0, 0, 0)
        if frame is not None and (len(self._usual) < _MOST_USUAL if usual is None else usual[4] is not None):
            outer = frame.f_back
            code = frame.f_code if is_whole_site(frame) else None
            above = (None, 0) if outer is None else (outer.f_code, outer.f_lasti)
            self._usual[label, lasti] = (words, kind, note, thread, code, *above, tail)
            if self._ledger is not None and code is not None and words == label and not kind and not note:
                self._ledger.remember(label, code, lasti, *above, thread, tail)
        return tail

    def _begin_with_memory(
        self, label: str, words: str, kind: str, note: str, thread: int, frame: FrameType | None, bits: int
    ) -> int:
        host, gpu = read_memory()
        texts = self._texts.get((label, words, kind, note)) or self._number(label, words, kind, note)
        site = self._sites.number(frame)
        now = _now()
        index = next(self._begun)
        memory = self._page.map
        at = STAGE_RING_OFFSET + index % STAGE_SLOTS * STAGE_BYTES
        _pack_stage(memory, at, now, host, gpu, texts, site, thread & 0xFFFFFFFF, 0, 0, 0, 0, bits)
        _pack_u64(memory, STAGES_OFFSET, index + 1)
        _pack_u64(memory, COUNTERS_OFFSET, now)
        return index

    def _end_with_memory(self, index: int, bits: int) -> None:
        host, gpu = read_memory() if bits & ~FAILED or self._setting_up else (0, 0)
        number = 0 if bits & _NO_NUMBER else next(self._passed)
        now = _now()
        memory = self._page.map
        if self._page.words[STAGES_WORD] - index <= STAGE_SLOTS:
            _pack_end(memory, _ENDED_AT + index % STAGE_SLOTS * STAGE_BYTES, now, host, gpu, number, bits)
        if number:
            _pack_u32(memory, STAGES_OFFSET + 8, number)
        _pack_u64(memory, COUNTERS_OFFSET, now)

    def _mark_with_memory(
        self, words: str, kind: str, note: str, thread: int, frame: FrameType | None, always: bool
    ) -> None:
        host, gpu = read_memory()
        texts = self._texts.get((words, words, kind, note)) or self._number(words, words, kind, note)
        site = self._sites.number(frame)
        bits = STAGE_ALWAYS if always else 0
        number = 0 if always else next(self._passed)
        now = _now()
        index = next(self._begun)
        memory = self._page.map
        at = STAGE_RING_OFFSET + index % STAGE_SLOTS * STAGE_BYTES
        _pack_stage(memory, at, now, host, gpu, texts, site, thread & 0xFFFFFFFF, now, host, gpu, number, bits)
        _pack_u64(memory, STAGES_OFFSET, index + 1)
        if number:
            _pack_u32(memory, STAGES_OFFSET + 8, number)
        _pack_u64(memory, COUNTERS_OFFSET, now)

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
        if self._ledger is not None:
            self._ledger.ready = self.enabled

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
        while stack and stack[-1][4] and stack[-1][4] not in alive:
            self.end(stack[-1])

    def _give_up(self, error: Exception) -> None:
        self.enabled = False
        if self._ledger is not None:
            self._ledger.ready = False
        self._page.error(f"stages are no longer recorded: {type(error).__name__}: {error}")


def _take_out(stack: list[OpenStage], stage: OpenStage) -> bool:
    """By identity: an open stage holds its own stack, and comparing two would never end."""
    for at, each in enumerate(stack):
        if each is stage:
            del stack[at]
            return True
    return False


def _has(stack: list[OpenStage], kind: str) -> bool:
    for stage in stack:  # noqa: SIM110  a generator costs more than the loop
        if stage[1] == kind:
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
