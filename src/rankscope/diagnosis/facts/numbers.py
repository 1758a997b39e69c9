"""Facts about numbers: values that stopped being finite, replicas that differ, and ranks that others wait for."""

from __future__ import annotations

from typing import Literal

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where

BadKind = Literal["input", "loss", "gradient", "parameter"]


class WentBad(Fact, frozen=True):
    """Values of these ranks stopped being finite, and it began there."""

    what: BadKind
    ranks: tuple[int, ...]
    value: str
    step: int
    """Optimizer steps made before."""
    where: Where | None
    spread_to: tuple[int, ...] = ()
    """Ranks that got it through a reduction."""


class CameFromSomewhere(Fact, frozen=True):
    """Values of these ranks were not finite after they had met those of others; where it began was not seen."""

    what: BadKind
    ranks: tuple[int, ...]
    value: str
    step: int


class HeldBad(Fact, frozen=True):
    """What one rank noted of its own values."""

    rank: int
    what: BadKind
    value: str
    step: int
    detail: str = ""
    """As the rank wrote it down."""


class BadTensors(Fact, frozen=True):
    """The first names of tensors that were not finite."""

    what: BadKind
    names: tuple[str, ...]
    """The first of them."""
    count: int


class GotByReduction(Fact, frozen=True):
    """These ranks computed finite values, as far as was seen, and got the others through a reduction."""

    ranks: tuple[int, ...]


class InputKept(Fact, frozen=True):
    """Parameters turned out to be bad; the rank still had what it was fed before, and looked at that."""

    rank: int
    step: int


class BadEverywhere(Fact, frozen=True):
    """All ranks had it in the same step, and their values had not met before."""

    step: int


class BadNowhereElse(Fact, frozen=True):
    """No other rank had it in that step."""

    step: int


class ValuesMet(Fact, frozen=True):
    """Before values went bad, one rank's could reach another's through this call."""

    op: str
    where: Where | None


class StepOfFiniteGradients(Fact, frozen=True):
    """NaN in parameters after a step: no optimizer makes it of finite gradients."""

    step: int


class GradientsSampled(Fact, frozen=True):
    """Not every gradient of that step was looked at."""

    step: int


class MayBeWritten(Fact, frozen=True):
    """The program itself may have written the value into its parameters."""

    step: int


class ReplicasDiffer(Fact, frozen=True):
    """Ranks no longer hold the same parameters."""

    odd: tuple[int, ...]
    """Those that stand against a majority; empty where there is none."""
    ranks: tuple[int, ...]
    step: int
    loaded: Where | None = None
    """Where the odd one loaded a checkpoint, and no other."""


class SumDiffers(Fact, frozen=True):
    """The checksum of one parameter on each rank."""

    name: str
    step: int
    sums: tuple[tuple[int, float], ...]
    """Rank and sum."""


class DifferedAgain(Fact, frozen=True):
    """How often the parameters of the replicas were seen to differ."""

    times: int
    last_step: int


class FewerSteps(Fact, frozen=True):
    """Ranks that ended after fewer optimizer steps than the others."""

    ranks: tuple[int, ...]


class LoadedAlone(Fact, frozen=True):
    """A rank loaded a checkpoint at a place where no other rank did."""

    rank: int
    where: Where
    times: int


class RewroteAlone(Fact, frozen=True):
    """Only some ranks, or all but some, changed the model or its learning rate beside the optimizer."""

    ranks: tuple[int, ...]
    """Who did it."""
    others: tuple[int, ...]
    """Who did not."""
    what: str
    """`load_state_dict` or `learning_rate`."""
    note: str
    """Whose state it was; from which rate to which."""
    step: int
    where: Where | None


class HoldsOtherCopy(Fact, frozen=True):
    """The model of one rank is no longer that of the others."""

    rank: int


class KeptWaiting(Fact, frozen=True):
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


class ArriveLast(Fact, frozen=True):
    """Where the others wait in collectives, these come last."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]


class WorksLonger(Fact, frozen=True):
    """A slow rank's work over that of the others, and where most of it was."""

    rank: int
    factor: float
    phase: str
