"""Ranks that wait for the process group to come about, or for a key of the job's store; machines that are gone."""

from __future__ import annotations

from typing import Literal

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.verdict import Where

LostState = Literal["cut-off", "gone", "frozen", "unreachable"]


class RanksNeverStarted(Fact, frozen=True):
    """Ranks of the declared world that nobody launched, while all that were launched wait."""

    ranks: tuple[int, ...]
    declared: int
    launched: int
    where: Where | None


class DeclaredWorld(Fact, frozen=True):
    """init_process_group was told another world size than was launched."""

    declared: int
    launched: int


class WaitInSetUp(Fact, frozen=True):
    """All that could join wait in the set-up."""

    ranks: tuple[int, ...]


class OtherVariable(Fact, frozen=True):
    """Ranks that have another value than all others of a variable by which ranks find each other."""

    ranks: tuple[int, ...]
    name: str
    value: str
    others: str


class FailedSetUp(Fact, frozen=True):
    """The traceback of a set-up that failed, outermost first."""

    rank: int
    frames: tuple[Where, ...]


class SetUpVariables(Fact, frozen=True):
    """The variables that a set-up went by: names and values."""

    rank: int
    variables: tuple[tuple[str, str], ...]


class ImportedTogether(Fact, frozen=True):
    """Ranks of one host that imported their libraries at the same time, and ran out of memory before anything else."""

    ranks: tuple[int, ...]


class AskedForGroup(Fact, frozen=True):
    """The members of the process group that ranks asked for, as their `number`-th."""

    ranks: tuple[int, ...]
    members: str
    number: int


class GroupsDiffer(Fact, frozen=True):
    """The ranks asked for different process groups as their `number`-th."""

    number: int
    asked: tuple[AskedForGroup, ...]


class GroupsTakeAll(Fact, frozen=True):
    """Every rank must call new_group for every group, in the same order."""


class WaitInNewGroup(Fact, frozen=True):
    """Ranks that wait in new_group."""

    ranks: tuple[int, ...]


class AwaitsKey(Fact, frozen=True):
    """A rank waits for a key of the job's store; empty where the key is not known."""

    rank: int
    key: str
    where: Where | None


class KeyUnset(Fact, frozen=True):
    """No rank has set the key."""

    key: str


class SettersWait(Fact, frozen=True):
    """Every rank that could set the key waits for this one."""


class LostNode(Fact, frozen=True):
    """A machine of the job. `seen_from`: the machine that looked."""

    host: str
    ranks: tuple[int, ...]
    state: LostState
    pid: int | None
    seen_from: str


class NodesLost(Fact, frozen=True):
    """Nodes that are gone or out of reach, with their ranks."""

    nodes: tuple[LostNode, ...]
    state: LostState


class NodeDoes(Fact, frozen=True):
    """Of a rank on a lost node: what is the matter with its node."""

    state: LostState


class LastWord(Fact, frozen=True):
    """When a lost node was heard last; it had not said goodbye."""

    silent_s: float


class Answered(Fact, frozen=True):
    """The machines that answered when others did not."""

    hosts: tuple[str, ...]


class MayBeDown(Fact, frozen=True):
    """A machine that is down looks like one that is out of reach."""


class CutApart(Fact, frozen=True):
    """Machines that do not reach each other; which of them is cut off cannot be told from `here`."""

    here: str
    hosts: tuple[str, ...]


class NoAnswerFrom(Fact, frozen=True):
    """Machines to which connections from `here` are not answered at all."""

    here: str
    hosts: tuple[str, ...]


class LinkUp(Fact, frozen=True):
    """The link of the machine that looked is up."""
