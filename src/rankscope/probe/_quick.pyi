"""Compiled from native/quick.c; see there, and beat.py for the state."""

from collections.abc import Callable, Iterator
from mmap import mmap
from types import CodeType, FrameType
from typing import Any

from rankscope.probe import beat, calls

class Beat(beat.Beat):
    def __init__(
        self,
        *,
        counters: int,
        loader: int,
        ring: int,
        slots: int,
        call_words: int,
        most_tensors: int,
        checksum_every: int,
        waiting: int,
        gave: int,
    ) -> None: ...

class Depths(calls.Depths): ...

class Ledger:
    ready: bool
    def __init__(
        self,
        *,
        book: object,
        open: dict[int, list[Any]],
        begun: Iterator[int],
        passed: Iterator[int],
        counters: int,
        stages: int,
        ring: int,
        stage_words: int,
        slots: int,
        ended: int,
        tail_bytes: int,
    ) -> None: ...
    def use(self, page: mmap, /) -> None: ...
    def remember(
        self,
        name: str,
        code: CodeType,
        lasti: int,
        outer_code: CodeType | None,
        outer_lasti: int,
        thread: int,
        tail: bytes,
        /,
    ) -> None: ...

class Stage:
    def __init__(self, name: str) -> None: ...
    def __enter__(self) -> Stage: ...
    def __exit__(self, *raised: object) -> None: ...

Usual = Callable[..., Any]

def next_batch(
    beat: beat.Beat,
    usual: Usual,
    advance: Usual,
    exhausted: Callable[[Any, int], None],
    fed: Callable[[str, Any], None],
    append: Callable[[Any], None],
    /,
) -> Usual: ...
def backward(
    beat: beat.Beat,
    usual: Usual,
    function: Usual,
    done: Callable[[tuple[Any, ...]], None],
    failed: Callable[[int, int], None],
    next_call: Iterator[int],
    depths: calls.Depths,
    name: int,
    /,
) -> Usual: ...
def own_gradient(beat: beat.Beat, usual: Usual, parameter: Any, /) -> Callable[..., None]: ...
def step_begins(beat: beat.Beat, usual: Usual, /) -> Callable[..., None]: ...
def step_done(beat: beat.Beat, usual: Usual, /) -> Callable[..., None]: ...
def declare_step(number: int, /) -> None: ...
def serve(
    books: list[Any],
    begin: Callable[[str, FrameType], Any],
    end: Callable[[Any, bool], None],
    mark: Callable[[str, FrameType], None],
    declare: Callable[[int], None],
    /,
) -> None: ...
