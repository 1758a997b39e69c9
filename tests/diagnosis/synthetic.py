"""Incidents made up from programs: each rank runs a real small source, and a planted fault makes the truth known.

A rank's program is executed without waiting, which gives its calls with their lines. A second pass lets the ranks
meet in their collectives as gloo or NCCL would, until nobody can go on, and writes down what would be seen then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import factories as make
from hypothesis import strategies as st

from rankscope.evidence.model import (
    Call,
    Collective,
    Evidence,
    Exit,
    Frame,
    Group,
    Loader,
    Progress,
    RankEvidence,
    StackSample,
    Syscall,
)

FILE = make.USER + "train.py"
START = make.NOW - 60
BLOCKING = frozenset({"barrier", "synchronize", "recv", "post", "crunch", "stop"})
SIDED = frozenset({"extra-rank", "extra-data", "pairing", "return-rank", "return-data", "mismatch", "crossed", "recv"})
"""Plants after which two sides wait for one another, so that equal sides may be told apart by their source only."""
CAUSES = {
    **dict.fromkeys(("extra-rank", "extra-data", "pairing", "return-rank", "return-data"), "collective-skipped"),
    "recv": "collective-skipped",
    "mismatch": "collective-mismatch",
    "crossed": "group-order-cycle",
    "short": "uneven-data",
    "short-left": "uneven-data",
    "left": "rank-left",
    "stopped": "frozen-process",
    "stopped-inside": "frozen-process",
    "blocked": "blocked-call",
    "computing": "slow-rank",
}


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the loop that calls a collective."""

    op: str
    numel: int
    second: bool
    """On the second group, where there is one."""
    helper: bool
    """Called through a function of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    ranks: int
    odd: frozenset[int]
    """The ranks at fault."""
    second: frozenset[int]
    """Members of the second group; empty without one."""
    body: tuple[Site, ...]
    steps: int
    plant: str
    """A key of CAUSES, or empty for a healthy run."""
    place: int
    step: int
    on_second: bool
    backend: str
    """`gloo`, `nccl`, or `none`: without flight recorder, only the probe's calls are known."""
    sources: bool
    eager: bool
    """The root of a broadcast does not wait for the others."""

    def members(self, group: str) -> frozenset[int]:
        return self.second if group == "1" else frozenset(range(self.ranks))

    def group(self) -> str:
        """The group that the fault is about."""
        return "1" if self.on_second and self.odd < self.second and self.plant != "crossed" else "0"


@dataclass(frozen=True, slots=True)
class Act:
    """A call of a rank's program."""

    op: str
    group: str
    numel: int
    peer: int
    site: tuple[Frame, ...]
    step: int
    batches: int


@dataclass(slots=True)
class Life:
    """What one rank did and where it came to."""

    acts: list[Act]
    exhausted: bool
    exit_site: tuple[Frame, ...]
    at: int = 0
    clock: float = START
    inside: bool = False
    entered: list[tuple[Act, int, float, float | None]] | None = None
    """Act, its number in its group, when entered, when left."""


@dataclass(frozen=True, slots=True)
class Incident:
    plan: Plan
    evidence: Evidence
    cause: str
    culprits: frozenset[int]
    line: int | None
    """The culprits' line, where the fault has one."""

    def symmetric(self) -> bool:
        """Nothing but the source could tell the sides apart."""
        return self.plan.plant in SIDED and 2 * len(self.culprits) >= len(self.plan.members(self.plan.group()))


class _Stays(Exception):
    """The rank does not return from its last call."""


class _Run:
    """Stands for torch.distributed and the rest of the world while one rank's program is executed."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.rank = plan, rank
        self.acts: list[Act] = []
        self.steps = self.batches = 0
        self.exhausted = False
        self.exit_site: tuple[Frame, ...] = ()

    def _note(self, op: str, numel: int = -1, group: str = "", peer: int = -1) -> None:
        self.acts.append(Act(op, group, numel, peer, _user_frames(), self.steps, self.batches))

    def all_reduce(self, numel: int, group: str = "0") -> None:
        self._note("all_reduce", numel, group)

    def all_gather(self, numel: int, group: str = "0") -> None:
        self._note("all_gather", numel, group)

    def broadcast(self, numel: int, src: int, group: str = "0") -> None:
        self._note("broadcast", numel, group, src)

    def barrier(self, group: str = "0") -> None:
        self._note("barrier", -1, group)

    def recv(self, numel: int, src: int) -> None:
        self._note("recv", numel, "0", src)
        raise _Stays

    def synchronize(self) -> None:
        self._note("synchronize")

    def stay(self, op: str) -> None:
        self._note(op)
        raise _Stays

    def leave(self, code: int) -> None:
        self.exit_site = _user_frames()
        raise SystemExit(code)

    def optimizer_step(self) -> None:
        self.steps += 1

    def loader(self) -> Iterator[SimpleNamespace]:
        plan = self.plan
        short = plan.plant.startswith("short") and self.rank in plan.odd
        for number in range(plan.step if short else plan.steps):
            self.batches += 1
            yield SimpleNamespace(damaged=self.rank in plan.odd and number == plan.step)
        self.exhausted = True


def _user_frames() -> tuple[Frame, ...]:
    found = []
    caller = sys._getframe(2)
    while caller is not None:
        if caller.f_code.co_filename == FILE:
            found.append(Frame(caller.f_code.co_name, FILE, caller.f_lineno, user=True))
        caller = caller.f_back  # type: ignore[assignment]
    return tuple(found)


def source_of(plan: Plan) -> tuple[str, int | None]:
    """The program, and the line of the fault where it has one."""
    lines = ["import requests, sys, torch, torch.distributed as dist", ""]
    for number, site in enumerate(plan.body):
        if site.helper:
            lines += [f"def part{number}():", f"    {_call(site, plan)}", ""]
    early = plan.plant.startswith("return")
    on_rank = f"rank in odd and step == {plan.step}"
    test = "batch.damaged" if plan.plant.endswith("data") else on_rank
    group = '"1"' if plan.group() == "1" else '"0"'
    if early:
        lines += ["def check(step, batch):", f"    if {test}:", "        return"]
        lines += [f"    dist.all_reduce(11, group={group})", ""]
    lines += ["def train():", "    for step, batch in enumerate(loader):"]
    marked = None
    for number, site in enumerate(plan.body):
        if number == plan.place % len(plan.body):
            planted = _planted(plan, test, group)
            marked = len(lines) + 1 + next((n for n, text in enumerate(planted) if "#" in text), -1)
            lines += [" " * 8 + text.replace("  #", "") for text in planted]
        member = "if member: " if site.second and plan.second else ""
        lines.append(" " * 8 + member + (f"part{number}()" if site.helper else _call(site, plan)))
    if plan.backend == "nccl":
        lines.append("        torch.cuda.synchronize()")
    lines.append("        optimizer.step()")
    if plan.plant != "short-left":
        lines.append("    dist.barrier()")
    lines += ["", "train()"]
    has_line = any("#" in text for text in _planted(plan, test, group))
    return "\n".join(lines) + "\n", marked if has_line else None


def _call(site: Site, plan: Plan) -> str:
    on_second = site.second and bool(plan.second)
    arguments = [] if site.op == "barrier" else [str(site.numel)]
    if site.op == "broadcast":
        arguments.append(f"src={min(plan.second) if on_second else 0}")
    if on_second:
        arguments.append('group="1"')
    return f"dist.{site.op}({', '.join(arguments)})"


def _planted(plan: Plan, test: str, group: str) -> list[str]:
    """The lines of the fault; `#` marks the one that a person should open."""
    members = "if member: " if group == '"1"' else ""
    guarded = {
        "extra-rank": f"dist.all_reduce(777, group={group})  #",
        "extra-data": f"dist.all_reduce(777, group={group})  #",
        "recv": f"dist.recv(9, src={min(frozenset(range(plan.ranks)) - plan.odd)})  #",
        "left": "sys.exit(0)  #",
        "stopped": "stop()  #",
        "blocked": "requests.post(url)  #",
        "computing": "crunch()  #",
    }
    if plan.plant in guarded:
        return [f"if {test}:", f"    {guarded[plan.plant]}"]
    if plan.plant == "pairing":
        barrier = f"dist.barrier(group={group})"
        return [f"if {test}:", f"    {barrier}  #", f"{members}{barrier}", f"{members}dist.all_reduce(21, group={group})"]
    if plan.plant.startswith("return"):
        return [f"{members}check(step, batch)"]
    if plan.plant == "mismatch":
        return [f"{members}dist.all_reduce(13 + ({test}), group={group})  #"]
    if plan.plant == "crossed":
        return [f"for group in order({test}):", "    dist.all_reduce(5, group=group)  #"]
    return []


def _execute(text: str, plan: Plan, rank: int) -> Life:
    run = _Run(plan, rank)
    groups = ("0", "1") if rank in plan.second else ("0",)
    scope: dict[str, Any] = {
        "dist": run,
        "torch": SimpleNamespace(cuda=SimpleNamespace(synchronize=run.synchronize)),
        "requests": SimpleNamespace(post=lambda _url: run.stay("post")),
        "sys": SimpleNamespace(exit=run.leave),
        "optimizer": SimpleNamespace(step=run.optimizer_step),
        "stop": lambda: run.stay("stop"),
        "crunch": lambda: run.stay("crunch"),
        "order": lambda other: groups[::-1] if other else groups,
        **{"rank": rank, "odd": plan.odd, "member": rank in plan.second, "url": "", "loader": run.loader()},
    }
    try:
        exec(compile(text.split("\n", 1)[1].join(("\n", "")), FILE, "exec"), scope)
    except (_Stays, SystemExit):
        pass
    return Life(run.acts, run.exhausted, run.exit_site, entered=[])


def _meet(plan: Plan, lives: list[Life]) -> None:
    """Lets every rank go on until none can."""
    slots: dict[tuple[str, int], dict[int, tuple[object, ...]]] = {}
    counts = [dict.fromkeys(("0", "1"), 0) for _ in lives]
    progress = True
    while progress:
        progress = False
        for rank, life in enumerate(lives):
            while life.at < len(life.acts):
                act = life.acts[life.at]
                assert life.entered is not None
                if not life.inside:
                    life.clock += 0.01 + 0.0007 * rank
                    collective = bool(act.group) and act.op != "recv"
                    counts[rank][act.group] = number = counts[rank].get(act.group, 0) + collective
                    if collective:
                        slots.setdefault((act.group, number), {})[rank] = (act.op, act.numel, act.peer)
                    life.entered.append((act, number if collective else 0, life.clock, None))
                    life.inside = progress = True
                if _must_wait(plan, rank, life, slots):
                    break
                life.clock = max(life.clock, *(other.clock for other in lives if other.at >= life.at)) + 0.0001
                act, number, at, _ = life.entered[-1]
                life.entered[-1] = (act, number, at, life.clock)
                life.at, life.inside, progress = life.at + 1, False, True


def _must_wait(plan: Plan, rank: int, life: Life, slots: dict[tuple[str, int], dict[int, tuple[object, ...]]]) -> bool:
    assert life.entered is not None
    act, number, _, _ = life.entered[-1]
    if act.op in {"recv", "post", "crunch", "stop"}:
        return True
    if plan.backend == "nccl":
        if act.op not in {"barrier", "synchronize"}:
            return False
        return not all(_complete(plan, a.group, n, slots) for a, n, _, _ in life.entered if n)
    if plan.plant == "stopped-inside" and act.step == plan.step and life.at == _stop_at(life, plan):
        return True
    if plan.eager and act.op == "broadcast" and act.peer == rank:
        return False
    return not _complete(plan, act.group, number, slots)
