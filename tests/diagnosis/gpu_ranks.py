"""Ranks that have given collectives and messages to their GPUs and run on, as torch's recorder and the probe tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import factories as make
from msgspec.structs import replace

from rankscope.evidence.model import Call, Collective, Evidence, Frame, Group, HostEvidence, RankEvidence, Thread

BEGAN = make.NOW - 40.0


@dataclass
class GpuRank:
    """Every method enqueues something; `state` is what the recorder says of it: completed, started, scheduled."""

    rank: int
    world: int = 3
    line: int = 90
    """Where the program stands and waits for the GPU."""
    timed: bool = False
    """Torch notes when the GPU came to each."""
    groups: tuple[Group, ...] = ()
    calls: list[Call] = field(default_factory=list)
    entries: list[Collective] = field(default_factory=list)
    step: int = 0
    inside: tuple[Frame, ...] = ()
    """Library frames beneath the user's line."""

    def all_reduce(self, line: int, state: str = "completed", *, numel: int = 8, group: str = "0") -> None:
        seq = sum(entry.group == group and not entry.p2p for entry in self.entries) + 1
        self._call("all_reduce", line, group=group, seq=seq, numel=numel)
        self._entry("all_reduce", state, group=group, seq=seq, sizes=((numel,),))

    def coalesced(self, line: int, state: str, sizes: tuple[tuple[int, ...], ...], group: str = "0") -> None:
        """A coalescing manager that is left after the calls."""
        seq = sum(entry.group == group and entry.op == "coalesced" for entry in self.entries) + 1
        for number, size in enumerate(sizes):
            self._call("all_reduce", line, group=group, seq=number + 1, numel=size[0])
        self._now()
        self._entry("allreduce_coalesced", "completed", group=group, seq=seq, sizes=sizes, retired=True)
        self._entry("coalesced", state, group=group, seq=seq, sizes=())

    def isend(self, peer: int, line: int, state: str = "completed") -> None:
        self._message("isend", f"send {self.rank}->{peer}", peer, line, state)

    def irecv(self, peer: int, line: int, state: str = "completed") -> None:
        self._message("irecv", f"recv {self.rank}<-{peer}", peer, line, state)

    def wait(self, line: int) -> None:
        self._call("Work.wait", line)

    def batch(self, halves: tuple[tuple[str, int], ...], line: int, state: str = "completed") -> None:
        number = self._messages() + 1
        outer = self._call("batch_isend_irecv", line, group="0")
        for word, peer in halves:
            self._call(f"i{word}", line, group="0", peer=peer, depth=1)
            arrow = "->" if word == "send" else "<-"
            self._entry(f"{word} {self.rank}{arrow}{peer}", "scheduled", p2p=number, sizes=((8,),), retired=False)
        self._entry("coalesced", state, p2p=number, sizes=())
        at = self.calls.index(outer)
        self.calls[at] = replace(outer, left_at=self.calls[-1].left_at)

    def leave(self, line: int) -> None:
        """Stands in `destroy_process_group`."""
        call = self._call("destroy_process_group", line)
        self.calls[-1] = replace(call, left_at=None, note="all")
        self.line, self.inside = line, (make.lib("torch/distributed/distributed_c10d.py", "destroy_process_group"),)

    def seen(self, **fields: object) -> RankEvidence:
        frames = (*self.inside, make.frame("train.py", self.line, "main"))
        values: dict[str, object] = {
            "progress": make.progress(
                *self.calls, world=self.world, groups=self.groups, steps=self.step, changed_at=self._at()
            ),
            "stacks": make.samples(Thread(make.PID, "MainThread", True, frames)),
            "processes": make.process(cpu=1.0),
            "collectives": tuple(self.entries),
            "still_for_s": make.NOW - self._at(),
            **fields,
        }
        return make.rank(self.rank, **values)

    def _message(self, op: str, name: str, peer: int, line: int, state: str) -> None:
        self._call(op, line, group="0", peer=peer)
        self._entry(name, state, p2p=self._messages() + 1, sizes=((8,),))

    def _messages(self) -> int:
        return max((entry.p2p_seq for entry in self.entries), default=0)

    def _at(self) -> float:
        return BEGAN + 0.01 * (len(self.calls) + len(self.entries))

    def _now(self) -> None:
        """The last call has returned."""
        self.calls[-1] = replace(self.calls[-1], left_at=self.calls[-1].entered_at + 0.001)

    def _call(
        self, op: str, line: int, *, group: str = "", seq: int = 0, peer: int = -1, numel: int = 8, depth: int = 0
    ) -> Call:
        at = self._at()
        site = (make.frame("train.py", line, "main"),)
        call = Call(
            len(self.calls), op, group, seq, make.PID, depth, at, at + 0.015, False, self.step, peer, numel, "f", site
        )
        self.calls.append(call)
        return call

    def _entry(
        self,
        op: str,
        state: str,
        *,
        sizes: tuple[tuple[int, ...], ...],
        group: str = "0",
        seq: int | None = None,
        p2p: int = 0,
        retired: bool | None = None,
    ) -> None:
        newest = max((entry.seq for entry in self.entries if entry.group == group), default=0)
        self.entries.append(
            Collective(
                record_id=len(self.entries),
                group=group,
                seq=newest if seq is None else seq,
                p2p_seq=p2p or self._messages(),
                op=op,
                backend="nccl",
                p2p=p2p > 0,
                state=state,
                retired=state == "completed" if retired is None else retired,
                created_at=self._at(),
                started_at=self._at() if self.timed and state != "scheduled" else None,
                input_sizes=sizes,
                output_sizes=sizes,
                input_dtypes=("Float",) * len(sizes),
                thread=make.PID,
            )
        )


def job(*ranks: GpuRank, hosts: tuple[HostEvidence, ...] = (), stall_after_s: float = 30.0) -> Evidence:
    """All of them as they stand, on one machine."""
    values: dict[str, Any] = {"hosts": hosts} if hosts else {}
    return make.evidence(*(each.seen() for each in ranks), stall_after_s=stall_after_s, **values)
