"""Ranks that wait for the process group to come about, or for a key of the job's store; machines that are gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where

LostState = Literal["cut-off", "gone", "frozen", "unreachable"]


@dataclass(frozen=True, slots=True)
class RanksNeverStarted(Fact):
    """Ranks of the declared world that nobody launched, while all that were launched wait."""

    ranks: tuple[int, ...]
    declared: int
    launched: int
    where: Where | None


@dataclass(frozen=True, slots=True)
class DeclaredWorld(Fact):
    """init_process_group was told another world size than was launched."""

    declared: int
    launched: int


@dataclass(frozen=True, slots=True)
class WaitInSetUp(Fact):
    """All that could join wait in the set-up."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OtherVariable(Fact):
    """Ranks that have another value than all others of a variable by which ranks find each other."""

    ranks: tuple[int, ...]
    name: str
    value: str
    others: str


@dataclass(frozen=True, slots=True)
class FailedSetUp(Fact):
    """The traceback of a set-up that failed, outermost first."""

    rank: int
    frames: tuple[Where, ...]


@dataclass(frozen=True, slots=True)
class SetUpVariables(Fact):
    """The variables that a set-up went by: names and values."""

    rank: int
    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ImportedTogether(Fact):
    """Ranks of one host that imported their libraries at the same time, and ran out of memory before anything else."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskedForGroup(Fact):
    """The members of the process group that ranks asked for, as their `number`-th."""

    ranks: tuple[int, ...]
    members: str
    number: int


@dataclass(frozen=True, slots=True)
class GroupsDiffer(Fact):
    """The ranks asked for different process groups as their `number`-th."""

    number: int
    asked: tuple[AskedForGroup, ...]


@dataclass(frozen=True, slots=True)
class GroupsTakeAll(Fact):
    """Every rank must call new_group for every group, in the same order."""


@dataclass(frozen=True, slots=True)
class WaitInNewGroup(Fact):
    """Ranks that wait in new_group."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AwaitsKey(Fact):
    """A rank waits for a key of the job's store; empty where the key is not known."""

    rank: int
    key: str
    where: Where | None


@dataclass(frozen=True, slots=True)
class KeyUnset(Fact):
    """No rank has set the key."""

    key: str


@dataclass(frozen=True, slots=True)
class SettersWait(Fact):
    """Every rank that could set the key waits for this one."""


@dataclass(frozen=True, slots=True)
class LostNode(Fact):
    """A machine of the job. `seen_from`: the machine that looked."""

    host: str
    ranks: tuple[int, ...]
    state: LostState
    pid: int | None
    seen_from: str


@dataclass(frozen=True, slots=True)
class NodesLost(Fact):
    """Nodes that are gone or out of reach, with their ranks."""

    nodes: tuple[LostNode, ...]
    state: LostState


@dataclass(frozen=True, slots=True)
class NodeDoes(Fact):
    """Of a rank on a lost node: what is the matter with its node."""

    state: LostState


@dataclass(frozen=True, slots=True)
class LastWord(Fact):
    """When a lost node was heard last; it had not said goodbye."""

    silent_s: float


@dataclass(frozen=True, slots=True)
class Answered(Fact):
    """The machines that answered when others did not."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MayBeDown(Fact):
    """A machine that is down looks like one that is out of reach."""


@dataclass(frozen=True, slots=True)
class CutApart(Fact):
    """Machines that do not reach each other; which of them is cut off cannot be told from `here`."""

    here: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoAnswerFrom(Fact):
    """Machines to which connections from `here` are not answered at all."""

    here: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LinkUp(Fact):
    """The link of the machine that looked is up."""
