"""What was found out about a step whose values were not finite, and what follows from it. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Kind = Literal["input", "loss", "gradient", "parameter"]


@dataclass(frozen=True, slots=True)
class BadTensor:
    """A tensor with values that are not finite."""

    name: str
    shape: tuple[int, ...]
    nan: int
    inf: int
    total: int
    values: tuple[str, ...] = ()
    """A few, from the first bad one on, as shown to people."""

    @property
    def worst(self) -> str:
        return "NaN" if self.nan else "Inf"


@dataclass(frozen=True, slots=True)
class FirstBad:
    """The first value, in the order of computation, that was not finite."""

    module: str
    """Name of the module; empty for the model itself."""
    kind: str
    """Class of the module."""
    what: Literal["output", "input", "gradient"]
    """`output`: the module made it out of finite input. `input`: it came to the module from the code of the module
    around it. `gradient`: the backward pass made it, at this module's output."""
    tensor: BadTensor
    micro_batch: int
    samples: tuple[int, ...]
    """The samples whose rows are bad, where rows can be told apart; else all of the micro batch."""
    rows_told_apart: bool
    frames: tuple[tuple[str, int, str], ...] = ()
    """Where in the program: file, line and function, innermost first."""


@dataclass(frozen=True, slots=True)
class RankFindings:
    """What one rank saw of the step in its own computation, before any reduction."""

    rank: int
    place: str
    """As lines of the log call it: `GPU 6`."""
    loss_then: float
    """This rank's own loss when it happened."""
    loss_again: float
    """The same when the step was repeated."""
    samples: tuple[int, ...]
    bad_inputs: tuple[BadTensor, ...]
    bad_parameters: tuple[BadTensor, ...]
    """Before the step."""
    first: FirstBad | None
    """In the forward pass."""
    first_backward: FirstBad | None
    """In the backward pass, where the forward pass was finite."""
    bad_gradients: tuple[BadTensor, ...]
    """Of parameters, of this rank alone, before the reduction."""


@dataclass(frozen=True, slots=True)
class Incident:
    step: int
    """Counted from 0, as in the log."""
    loss: float
    grad_norm: float
    kind: Kind
    origins: tuple[int, ...]
    """Ranks where it began; empty where no rank's own computation shows it."""
    reproduced: bool
    """Whether the repeated step went bad too."""
    ranks: tuple[RankFindings, ...]
    bad_gradients: tuple[BadTensor, ...]
    """After the reduction: what the optimizer was not given."""

    @property
    def shown(self) -> RankFindings:
        """The rank that the report is about: the first where it began, else the first of all."""
        wanted = self.origins[0] if self.origins else self.ranks[0].rank
        return next(rank for rank in self.ranks if rank.rank == wanted)


def concluded(
    step: int, loss: float, grad_norm: float, ranks: Sequence[RankFindings], bad_gradients: Sequence[BadTensor]
) -> Incident:
    """Where it began: parameters before inputs, inputs before the forward pass, that before the backward pass."""
    kind: Kind = "gradient"
    origins: list[int] = []
    reproduced = bool(bad_gradients)
    tests: list[tuple[Kind, list[int]]] = [
        ("parameter", [rank.rank for rank in ranks if rank.bad_parameters]),
        ("input", [rank.rank for rank in ranks if rank.bad_inputs]),
        ("loss", [rank.rank for rank in ranks if rank.first is not None or not _finite(rank.loss_again)]),
        ("gradient", [rank.rank for rank in ranks if rank.first_backward is not None or rank.bad_gradients]),
        ("loss", [rank.rank for rank in ranks if not _finite(rank.loss_then)]),
    ]
    for number, (name, found) in enumerate(tests):
        if found:
            kind, origins = name, found
            reproduced = reproduced or number < len(tests) - 1
            break
    return Incident(step, loss, grad_norm, kind, tuple(origins), reproduced, tuple(ranks), tuple(bad_gradients))


def to_plain(incident: Incident) -> dict[str, Any]:
    """As data that JSON, and a pickle without classes, can hold; values that are not finite as text."""
    plain: dict[str, Any] = _without_nan(msgspec.to_builtins(incident))
    return plain


def from_plain(plain: dict[str, Any]) -> Incident:
    return msgspec.convert(_with_nan(plain), Incident)


_WORDS = {"NaN": float("nan"), "Inf": float("inf"), "-Inf": float("-inf")}
_NUMBERS = ("loss", "grad_norm", "loss_then", "loss_again")


def number_text(value: float) -> str:
    """`12.6087`, `nan`, `inf`: as the report writes a loss or a norm."""
    return f"{value:.4f}"


def _finite(value: float) -> bool:
    return math.isfinite(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(inner) for inner in value]
    if isinstance(value, float) and not _finite(value):
        return "NaN" if math.isnan(value) else ("Inf" if value > 0 else "-Inf")
    return value


def _with_nan(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _with_nan(inner, name) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_nan(inner) for inner in value]
    return _WORDS.get(value, value) if key in _NUMBERS and isinstance(value, str) else value
