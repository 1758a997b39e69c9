"""Small programs, run for each rank without communicating: their calls with real lines, as pages hold them."""

from __future__ import annotations

import sys
from typing import Any

import factories as make
from msgspec.structs import replace

from rankscope.evidence.model import Call, Collective, Evidence, Exit, Frame, Group, RankEvidence

FILE = make.USER + "train.py"
START = make.NOW - 60


class Tensor:
    def __init__(self, numel: int, dtype: str = "float32", shape: str = "") -> None:
        self.numel, self.dtype, self.shape = numel, dtype, shape

    def clamp_(self, *_limits: float, **_more: float) -> Tensor:
        return self


class Recorder:
    """What a program of one rank calls."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.calls: list[Call] = []
        self.now = START
        self.steps = 0
        self.counts: dict[str, int] = {}

    def work(self, seconds: float) -> None:
        self.now += seconds

    def step(self) -> None:
        self.steps += 1

    def make(self, op: str, tensor: Tensor | None, root: int = -1, group: str = "0", reduces: str = "") -> None:
        self.now += 0.001
        seq = self.counts[group] = self.counts.get(group, 0) + 1
        frames, frame = [], sys._getframe(2)
        while frame is not None and frame.f_code.co_filename == FILE:
            name = frame.f_code.co_name
            frames.append(Frame(name, FILE, frame.f_lineno, user=True))
            frame = frame.f_back  # type: ignore[assignment]
        numel, dtype = (-1, "") if tensor is None else (tensor.numel, tensor.dtype)
        self.calls.append(
            Call(
                len(self.calls), op, group, seq, 1, 0, self.now, self.now + 0.0005, False, self.steps, root, numel,
                dtype, tuple(frames), note=reduces,
            )
        )  # fmt: skip

    def names(self) -> dict[str, Any]:
        def named(op: str, root: bool = False) -> Any:
            if root:
                return lambda tensor, root, group="0": self.make(op, tensor, root, group)
            return lambda tensor, group="0": self.make(op, tensor, -1, group)

        rooted = {op: named(op, root=True) for op in ("broadcast", "reduce")}

        def all_reduce(tensor: Tensor, group: str = "0", op: str = "SUM") -> None:
            self.make("all_reduce", tensor, -1, group, f"{op} {tensor.shape}".strip())

        plain = {op: named(op) for op in ("all_gather", "all_gather_into_tensor", "all_to_all_single", "barrier")}
        return {
            "rank": self.rank,
            "Tensor": Tensor,
            "work": self.work,
            "step": self.step,
            "all_reduce": all_reduce,
            **rooted,
            **plain,
        }


def evidence_of(
    source: str,
    ranks: int = 3,
    *,
    behind: dict[int, int] | None = None,
    groups: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (),
    ended: bool = False,
    recorded: bool = False,
    stuck: bool = False,
    trigger: str = "non-finite",
    **fields: Any,
) -> Evidence:
    """`behind`: rank → calls that it has not made yet. `groups`: names and the sets of ranks that have one of them.
    `recorded`: by the flight recorder as well. `stuck`: the last call of each rank has not returned."""
    program = compile(source, FILE, "exec")
    seen = []
    for rank in range(ranks):
        recorder = Recorder(rank)
        exec(program, recorder.names())
        calls = recorder.calls[: len(recorder.calls) - (behind or {}).get(rank, 0)]
        if stuck:
            calls[-1] = replace(calls[-1], left_at=None)
        known = [Group("0", "default_pg", tuple(range(ranks)))]
        known += [Group(name, name, own) for name, sets in groups for own in sets if rank in own]
        page = make.progress(*calls, world=ranks, steps=recorder.steps, groups=tuple(known))
        exit_ = Exit(0, make.NOW, by_launcher=False) if ended else None
        seen.append(
            RankEvidence(
                rank, rank, "node-1", make.PID + rank, START, exit=exit_, progress=page,
                collectives=tuple(map(entry, calls)) if recorded else (),
            )
        )  # fmt: skip
    return make.evidence(*seen, source={"train.py": source}, trigger=trigger, **fields)


def entry(call: Call) -> Collective:
    """The same call as torch's recorder on NCCL writes it down."""
    done = call.left_at is not None
    sizes = ((call.numel,),) if call.numel >= 0 else ()
    return Collective(
        call.index, call.group, call.seq, 0, call.op, "nccl", False, "completed" if done else "scheduled", done,
        call.entered_at + 0.0001, sizes, sizes, (call.dtype,), (call.dtype,),
    )  # fmt: skip


def line_of(source: str, text: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)
