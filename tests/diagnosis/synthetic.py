"""Incidents made up from programs: each rank runs a real small source, and a planted fault makes the truth known.

A rank's program is executed without waiting, which gives its calls with their lines. A second pass lets the ranks
meet in their collectives as gloo or NCCL would, until nobody can go on, and writes down what would be seen then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType, SimpleNamespace
from typing import Any

import factories as make
import msgspec

from rankscope.evidence.model import Frame

FILE = make.USER + "train.py"
START = make.NOW - 60
FOR_EVER = frozenset({"recv", "post", "crunch", "stop"})
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


class Site(msgspec.Struct, frozen=True):
    """A line of the loop that calls a collective."""

    op: str
    numel: int
    second: bool
    """On the second group, where there is one."""
    helper: bool
    """Called through a function of its own."""


class Plan(msgspec.Struct, frozen=True):
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
        few = self.odd < self.second and 2 * len(self.odd) <= len(self.second)
        return "1" if self.on_second and few and self.plant != "crossed" else "0"


class Act(msgspec.Struct, frozen=True):
    """A call of a rank's program."""

    op: str
    group: str
    numel: int
    peer: int
    site: tuple[Frame, ...]
    step: int
    batches: int
    exhausted: bool


class Entered(msgspec.Struct):
    """A call that a rank has entered."""

    act: Act
    number: int
    """Its place in its group's sequence; 0 for calls that are no collectives."""
    at: float
    left: float | None = None


class Life(msgspec.Struct):
    """What one rank did, and where it came to."""

    rank: int
    acts: list[Act]
    batches: int
    exhausted: bool
    exit_site: tuple[Frame, ...]
    stop_at: int
    """The act inside which the process is stopped; -1 without one."""
    at: int = 0
    clock: float = START
    inside: bool = False
    entered: list[Entered] = msgspec.field(default_factory=list)

    def standing(self) -> Entered | None:
        """The call it has not left; None for a rank that came to its end."""
        return self.entered[-1] if self.inside else None


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
        self.acts.append(Act(op, group, numel, peer, _user_frames(), self.steps, self.batches, self.exhausted))

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
    caller: FrameType | None = sys._getframe(2)
    while caller is not None:
        if caller.f_code.co_filename == FILE:
            found.append(Frame(caller.f_code.co_name, FILE, caller.f_lineno, user=True))
        caller = caller.f_back
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
        "stopped": "stop()",
        "blocked": "requests.post(url)  #",
        "computing": "crunch()  #",
    }
    if plan.plant in guarded:
        return [f"if {test}:", f"    {guarded[plan.plant]}"]
    if plan.plant == "pairing":
        barrier = f"dist.barrier(group={group})"
        return [
            f"if {test}:",
            f"    {barrier}  #",
            f"{members}{barrier}",
            f"{members}dist.all_reduce(21, group={group})",
        ]
    if plan.plant.startswith("return"):
        return [f"{members}check(step, batch)"]
    if plan.plant == "mismatch":
        return [f"{members}dist.all_reduce(13 + ({test}), group={group})  #"]
    if plan.plant == "crossed":
        return [f"for group in order({test}):", "    dist.all_reduce(5, group=group)  #"]
    return []


def live(plan: Plan) -> tuple[list[Life], Meeting, str, int | None]:
    """Every rank's life up to where nobody can go on, the source, and the fault's line."""
    text, line = source_of(plan)
    lives = [_execute(text, plan, rank) for rank in range(plan.ranks)]
    return lives, _meet(plan, lives), text, line


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
    with suppress(_Stays, SystemExit):
        exec(compile("\n" + text.split("\n", 1)[1], FILE, "exec"), scope)
    stop_at = -1
    if plan.plant == "stopped-inside" and rank in plan.odd:
        inside = [n for n, act in enumerate(run.acts) if act.group and act.step >= plan.step]
        stop_at = inside[plan.place % len(inside)]
    return Life(rank, run.acts, run.batches, run.exhausted, run.exit_site, stop_at)


class Meeting:
    """Who has entered which collective, with what, and when."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.slots: dict[tuple[str, int], dict[int, tuple[tuple[object, ...], float]]] = {}
        self.counts: dict[tuple[int, str], int] = {}
        self.broken: set[tuple[str, int]] = set()
        self.done: set[tuple[str, int]] = set()

    def enter(self, life: Life) -> None:
        act, number = life.acts[life.at], 0
        life.clock += 0.01 + 0.0007 * life.rank
        if act.group and act.op != "recv":
            number = self.counts[life.rank, act.group] = self.counts.get((life.rank, act.group), 0) + 1
            signature: tuple[object, ...] = (act.op, act.numel, act.peer)
            if act.op == "barrier" and self.plan.backend == "nccl":
                signature = ("all_reduce", 1, -1)
            self.slots.setdefault((act.group, number), {})[life.rank] = (signature, life.clock)
            if life.at == life.stop_at:
                self.broken.add((act.group, number))
        life.entered.append(Entered(act, number, life.clock))
        life.inside = True

    def advance(self, lives: list[Life]) -> None:
        """Completes what all members have entered alike; on a GPU, a rank's collectives run one after another."""
        heads = {life.rank: self.head(life) for life in lives}
        for slot, here in self.slots.items():
            same = len({signature for signature, _ in here.values()}) == 1
            if not same or set(here) != self.plan.members(slot[0]) or slot in self.broken:
                continue
            if self.plan.backend != "nccl" or all(heads[rank] in {None, slot} for rank in here):
                self.done.add(slot)

    def head(self, life: Life) -> tuple[str, int] | None:
        """The rank's first collective that is not complete."""
        slots = ((each.act.group, each.number) for each in life.entered if each.number)
        return next((slot for slot in slots if slot not in self.done), None)

    def free_at(self, life: Life) -> float | None:
        """When the rank leaves the call it is in; None while it has to wait."""
        newest = life.entered[-1]
        awaited = [newest] if newest.number else []
        if newest.act.op in FOR_EVER:
            return None
        if self.plan.backend == "nccl":
            if newest.act.op not in {"barrier", "synchronize"}:
                return newest.at + 0.0001
            awaited = [each for each in life.entered if each.number]
        elif (
            self.plan.eager
            and newest.act.op == "broadcast"
            and newest.act.peer == life.rank
            and life.at != life.stop_at
        ):
            return newest.at + 0.0001
        if not all((each.act.group, each.number) in self.done for each in awaited):
            return None
        met = [at for each in awaited for _, at in self.slots[each.act.group, each.number].values()]
        return max([newest.at, *met]) + 0.0001


def _meet(plan: Plan, lives: list[Life]) -> Meeting:
    """Lets every rank go on until none can."""
    meeting = Meeting(plan)
    moved = True
    while moved:
        before = len(meeting.done)
        meeting.advance(lives)
        moved = len(meeting.done) > before
        for life in lives:
            while life.at < len(life.acts):
                if not life.inside:
                    meeting.enter(life)
                    moved = True
                free = meeting.free_at(life)
                if free is None:
                    break
                life.clock = life.entered[-1].left = free
                life.at, life.inside, moved = life.at + 1, False, True
    return meeting
