"""Facts about numbers: values that stopped being finite, replicas that differ, and ranks that others wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where

BadKind = Literal["input", "loss", "gradient", "parameter"]


@dataclass(frozen=True, slots=True)
class WentBad(Fact):
    """Values of these ranks stopped being finite, and it began there."""

    what: BadKind
    ranks: tuple[int, ...]
    value: str
    step: int
    """Optimizer steps made before."""
    where: Where | None
    spread_to: tuple[int, ...] = ()
    """Ranks that got it through a reduction."""


@dataclass(frozen=True, slots=True)
class CameFromSomewhere(Fact):
    """Values of these ranks were not finite after they had met those of others; where it began was not seen."""

    what: BadKind
    ranks: tuple[int, ...]
    value: str
    step: int


@dataclass(frozen=True, slots=True)
class HeldBad(Fact):
    """What one rank noted of its own values."""

    rank: int
    what: BadKind
    value: str
    step: int
    detail: str = ""
    """As the rank wrote it down."""


@dataclass(frozen=True, slots=True)
class BadTensors(Fact):
    """The first names of tensors that were not finite."""

    what: BadKind
    names: tuple[str, ...]
    """The first of them."""
    count: int


@dataclass(frozen=True, slots=True)
class GotByReduction(Fact):
    """These ranks computed finite values, as far as was seen, and got the others through a reduction."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InputKept(Fact):
    """Parameters turned out to be bad; the rank still had what it was fed before, and looked at that."""

    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class BadEverywhere(Fact):
    """All ranks had it in the same step, and their values had not met before."""

    step: int


@dataclass(frozen=True, slots=True)
class BadNowhereElse(Fact):
    """No other rank had it in that step."""

    step: int


@dataclass(frozen=True, slots=True)
class ValuesMet(Fact):
    """Before values went bad, one rank's could reach another's through this call."""

    op: str
    where: Where | None


@dataclass(frozen=True, slots=True)
class StepOfFiniteGradients(Fact):
    """NaN in parameters after a step: no optimizer makes it of finite gradients."""

    step: int


@dataclass(frozen=True, slots=True)
class GradientsSampled(Fact):
    """Not every gradient of that step was looked at."""

    step: int


@dataclass(frozen=True, slots=True)
class MayBeWritten(Fact):
    """The program itself may have written the value into its parameters."""

    step: int


@dataclass(frozen=True, slots=True)
class ReplicasDiffer(Fact):
    """Ranks no longer hold the same parameters."""

    odd: tuple[int, ...]
    """Those that stand against a majority; empty where there is none."""
    ranks: tuple[int, ...]
    step: int
    loaded: Where | None = None
    """Where the odd one loaded a checkpoint, and no other."""


@dataclass(frozen=True, slots=True)
class SumDiffers(Fact):
    """The checksum of one parameter on each rank."""

    name: str
    step: int
    sums: tuple[tuple[int, float], ...]
    """Rank and sum."""


@dataclass(frozen=True, slots=True)
class DifferedAgain(Fact):
    """How often the parameters of the replicas were seen to differ."""

    times: int
    last_step: int


@dataclass(frozen=True, slots=True)
class FewerSteps(Fact):
    """Ranks that ended after fewer optimizer steps than the others."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadedAlone(Fact):
    """A rank loaded a checkpoint at a place where no other rank did."""

    rank: int
    where: Where
    times: int


@dataclass(frozen=True, slots=True)
class HoldsOtherCopy(Fact):
    """The model of one rank is no longer that of the others."""

    rank: int


@dataclass(frozen=True, slots=True)
class KeptWaiting(Fact):
    """Slow ranks, and those that waited for them."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    lost_s: float
    """Of the slowest: what each of the others waited."""
    share: float
    factor: float
    """Its work over that of the others."""
    phase: str
    """`data`, `forward/backward`, `save` or `other`."""
    where: Where | None = None


@dataclass(frozen=True, slots=True)
class ArriveLast(Fact):
    """Where the others wait in collectives, these come last."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorksLonger(Fact):
    """A slow rank's work over that of the others, and where most of it was."""

    rank: int
    factor: float
    phase: str
