"""Evidence of made-up incidents: what the collectors would have seen of the ranks of synthetic.py, and the truth."""

from __future__ import annotations

from dataclasses import dataclass

import factories as make
from hypothesis import strategies as st
from msgspec.structs import replace
from synthetic import CAUSES, SIDED, Entered, Life, Meeting, Plan, Site, live

from rankscope.evidence.model import (
    Call,
    Collective,
    Evidence,
    Exit,
    Frame,
    Group,
    Loader,
    ProcessSample,
    Progress,
    RankEvidence,
    StackSample,
    Syscall,
)

C10D = "torch/distributed/distributed_c10d.py"


@dataclass(frozen=True, slots=True)
class Incident:
    plan: Plan
    evidence: Evidence
    cause: str
    culprits: frozenset[int]
    line: int | None
    """The culprits' line, where the fault has one."""

    def undecided(self) -> bool:
        """Two equal sides wait for one another, and the evidence has no source that could tell them apart: a condition
        on data says that the ways part there, not which of them was the right one."""
        plan = self.plan
        if plan.plant not in SIDED:
            return False
        few = 2 * len(self.culprits) < len(plan.second if plan.plant == "crossed" else plan.members(plan.group()))
        if plan.sources and plan.plant not in EQUAL and plan.plant != "extra-data":
            return bool(plan.second) and not few
        return bool(plan.second) or not few

    def happened(self) -> bool:
        """Somebody waits; a root that never waits may let a fault pass unnoticed."""
        return any(seen.exit is None for seen in self.evidence.ranks)

    def accepts(self, culprits: frozenset[int | None]) -> bool:
        """Whether naming these ranks is right, or as right as the evidence allows."""
        if culprits == self.culprits:
            return True
        if self.undecided():
            return self.culprits <= culprits or culprits <= self.culprits
        # Of several that left, or that a second group keeps apart, one is enough.
        gone = {seen.rank for seen in self.evidence.ranks if seen.exit is not None}
        return bool(culprits) and culprits < self.culprits and (culprits <= gone or bool(self.plan.second))


EQUAL = frozenset({"mismatch", "crossed", "recv"})
"""Even the source does not say which of two equal sides is right."""


def incident(plan: Plan) -> Incident:
    lives, meeting, text, line = live(plan)
    ranks = tuple(_rank(life, plan, meeting) for life in lives)
    evidence = make.evidence(*ranks, source={"train.py": text} if plan.sources else None)
    return Incident(plan, evidence, CAUSES.get(plan.plant, ""), plan.odd, line)


def _rank(life: Life, plan: Plan, meeting: Meeting) -> RankEvidence:
    standing = life.standing()
    stopped = life.at == life.stop_at or (standing is not None and standing.act.op == "stop")
    stacks, processes = _seen(standing, plan, stopped)
    seen = make.rank(
        life.rank,
        stacks=stacks,
        processes=processes,
        progress=_progress(life, plan),
        still_for_s=None if standing is None or standing.act.op == "crunch" else 25.0,
        collectives=_records(life, plan, meeting),
        missing={"stacks": "Failed to suspend process"} if stopped else {},
    )
    if plan.backend != "none":
        counts = {name: max(e.number for e in life.entered if e.act.group == name) for name in _used(life)}
        seen = replace(seen, last_enqueued=counts)
    if standing is None:
        seen = replace(seen, exit=Exit(0, life.clock + 0.2, by_launcher=False))
    return seen


def _used(life: Life) -> list[str]:
    return sorted({each.act.group for each in life.entered if each.number})


def _progress(life: Life, plan: Plan) -> Progress:
    newest = life.entered[-1].act if life.entered else None
    calls = tuple(_call(n, each) for n, each in enumerate(e for e in life.entered if e.act.group))
    groups = [Group("0", "default_pg", tuple(range(plan.ranks)))]
    if life.rank in plan.second:
        groups.append(Group("1", "", tuple(sorted(plan.second))))
    ended = life.standing() is None
    batches = life.batches if ended else (newest.batches if newest is not None else 0)
    exhausted = life.exhausted if ended else newest is not None and newest.exhausted
    return make.progress(
        *calls,
        world=plan.ranks,
        steps=newest.step if newest is not None else 0,
        groups=tuple(groups),
        changed_at=life.clock,
        loader=Loader(0, batches, exhausted, 0, False, life.clock),
        exit_site=life.exit_site,
        exit_note="sys.exit(0)" if life.exit_site else "",
        finalizing=ended,
    )


def _call(index: int, entered: Entered) -> Call:
    act, left = entered.act, entered.left
    return Call(
        index, act.op, act.group, entered.number, make.PID, 0, entered.at, left, False, act.step, act.peer,
        act.numel, "float32" if act.numel >= 0 else "", act.site,
    )  # fmt: skip


def _records(life: Life, plan: Plan, meeting: Meeting) -> tuple[Collective, ...]:
    if plan.backend == "none":
        return ()
    found: list[Collective] = []
    for entered in life.entered:
        act = entered.act
        if not entered.number:
            continue
        nccl = plan.backend == "nccl"
        done = entered.left is not None
        state = "scheduled"
        if nccl:
            done = (act.group, entered.number) in meeting.done
            first = meeting.head(life) == (act.group, entered.number)
            state = "completed" if done else "started" if first else "scheduled"
        barrier = act.op == "barrier"
        sizes: tuple[tuple[int, ...], ...] = ((1 if barrier else act.numel,),) if nccl or not barrier else ()
        found.append(
            Collective(
                record_id=len(found),
                group=act.group,
                seq=entered.number,
                p2p_seq=0,
                op="all_reduce" if nccl and barrier else act.op,
                backend=plan.backend,
                p2p=False,
                state=state,
                retired=done,
                created_at=entered.at + 0.00002,
                input_sizes=sizes,
                output_sizes=sizes,
                input_dtypes=("Float",) if sizes else (),
                output_dtypes=("Float",) if sizes else (),
                thread=make.PID,
            )
        )
    return tuple(found)


def _seen(
    standing: Entered | None, plan: Plan, stopped: bool
) -> tuple[tuple[StackSample, ...], tuple[ProcessSample, ...]]:
    if standing is None:
        return (), ()
    act = standing.act
    if stopped:
        return (), make.process(state="T")
    if act.op == "crunch":
        moved = replace(act.site[0], line=act.site[0].line + 1)
        one, two = make.thread((moved, *act.site[1:])), make.thread(act.site)
        return (*make.samples(one, times=1), *make.samples(two, times=1)), make.process(cpu=0.5, state="R")
    if act.op == "post":
        inner = (make.lib("socket.py", "readinto"), make.lib("requests/api.py", "post"))
        answer = Syscall("recvfrom", 5, "tcp 127.0.0.1:5000 -> 127.0.0.1:9000")
        return make.samples(make.thread((*inner, *act.site))), make.process(answer)
    frames: tuple[Frame, ...] = (make.lib(C10D, act.op), make.lib("torch/distributed/c10d_logger.py", "wrapper"))
    if plan.backend == "nccl" and act.op != "recv":
        if act.op == "synchronize":
            frames = (make.lib("torch/cuda/__init__.py", "synchronize"),)
        return make.samples(make.thread((*frames, *act.site))), make.process(cpu=0.5, state="R")
    return make.samples(make.thread((*frames, *act.site))), make.process("futex")


@st.composite
def plans(
    draw: st.DrawFn,
    plants: tuple[str, ...] = tuple(CAUSES),
    smallest: int = 2,
    backends: tuple[str, ...] = ("gloo", "nccl", "none"),
) -> Plan:
    plant = draw(st.sampled_from(plants))
    ranks = draw(st.integers(smallest, 8))
    most = max(1, ranks // 2) if plant in SIDED or plant.startswith("short") else 1
    order = draw(st.permutations(range(ranks)))
    odd = frozenset(order[: draw(st.integers(1, most))])
    second: frozenset[int] = frozenset()
    if plant == "crossed" or draw(st.booleans()):
        second = frozenset(order[: draw(st.integers(2 * len(odd), ranks))])
        if plant != "crossed" and draw(st.booleans()):
            second = frozenset(draw(st.permutations(range(ranks)))[: max(2, len(second))])
    body = draw(st.lists(_SITES, min_size=1, max_size=4))
    if plant.startswith("short"):
        body[0] = replace(body[0], second=False)
    steps = draw(st.integers(1, 4))
    backend = draw(st.sampled_from([b for b in backends if b != "nccl" or plant != "stopped-inside"]))
    return Plan(
        ranks=ranks,
        odd=odd,
        second=second,
        body=tuple(body),
        steps=steps,
        plant=plant,
        place=draw(st.integers(0, 3)),
        step=draw(st.integers(0, steps - 1)),
        on_second=draw(st.booleans()),
        backend=backend,
        sources=draw(st.booleans()),
        eager=draw(st.booleans()),
    )


_SITES = st.builds(
    Site,
    st.sampled_from(["all_reduce", "broadcast", "all_gather", "barrier"]),
    st.integers(1, 5),
    second=st.booleans(),
    helper=st.booleans(),
)
