"""What is known of a value before it is certain to be an incident."""

from __future__ import annotations

from typing import NamedTuple

from rankscope.probe.batches import BadInputs

Frames = tuple[tuple[str, int, str], ...]


class About(NamedTuple):
    """What a number that comes late says something of."""

    kind: str
    step: int
    backward: int
    """Number of the backward pass."""
    frames: Frames


class LateChecksum(NamedTuple):
    """The same, of a parameter that replicas share."""

    step: int
    group: str
    name: str


class Suspicion(NamedTuple):
    """A value of this rank was not finite; an incident only once an optimizer applies what comes of it."""

    kind: str
    step: int
    value: str
    tensors: tuple[str, ...] = ()
    detail: str = ""
    frames: Frames = ()


def of_inputs(found: BadInputs | None, frames: Frames) -> Suspicion | None:
    return found and Suspicion("input", found.step, found.value, found.names, found.detail, frames)
