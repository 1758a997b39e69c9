"""Compiled from native/quick.c; see there, and beat.py for the state."""

from collections.abc import Callable, Iterator
from typing import Any

from rankscope.probe import beat

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
    depths: dict[int, int],
    name: int,
    /,
) -> Usual: ...
def own_gradient(beat: beat.Beat, usual: Usual, /) -> Callable[..., None]: ...
def step_begins(beat: beat.Beat, usual: Usual, /) -> Callable[..., None]: ...
def step_done(beat: beat.Beat, usual: Usual, /) -> Callable[..., None]: ...
