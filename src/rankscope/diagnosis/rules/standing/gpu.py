"""A rank that waits for its GPU, and what the driver reports of GPUs."""

from __future__ import annotations

import re

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.standing import (
    AwaitsGpu,
    Does,
    DriverSilent,
    GpuBehind,
    GpuUse,
    NotRuledOut,
    Works,
    XidReported,
)
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rank_wait import Wait
from rankscope.diagnosis.record import read_record
from rankscope.diagnosis.rules.standing.frames import above_user, in_module, source_line
from rankscope.diagnosis.rules.standing.stand import Stand, busy, finding_of, movement
from rankscope.diagnosis.views import current_where, innermost_user_frame, newest_main_thread, same_stack
from rankscope.evidence.model import Evidence, Gpu, HostEvidence, RankEvidence

_WAITS = frozenset({"synchronize", "wait", "item", "cpu", "tolist", "numpy", "current_stream", "_lazy_init"})
_READS_FROM_GPU = re.compile(r"\.(?:item|cpu|tolist|numpy|nonzero)\(|\bsynchronize\(|\b(?:float|int|bool|print)\(")
_XID = re.compile(r"Xid \((?:PCI:)?([^)]*)\): (\d+)(?:, pid='?(\d+))?")
_OF_THE_PROGRAM = frozenset({13, 31, 43, 45})
_HARDWARE_FIX = (Advice("take-gpu-out"), Advice("look-xid-up"))
_PROGRAM_FIX = (Advice("name-the-kernel"), Advice("wrong-index"))


def gpu_stuck(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """A rank that stands in a wait for a GPU which is at fault or does nothing; a GPU that works is no fault."""
    host = next((host for host in evidence.hosts if host.host == rank.host), None)
    if host is None or not _waits_for_gpu(rank, evidence, host) or same_stack(rank) is False:
        return None
    faults = xid_lines(rank, evidence)
    silent = "no answer" in host.missing.get("gpus", "") or any(gpu.name.endswith("not answer") for gpu in host.gpus)
    own = _own_gpu(rank, host)
    if not faults and not silent and not _at_fault(rank, own):
        return None
    at = current_where(rank)
    use = _use(own)
    return Stand(
        cause="gpu-stuck",
        at=at,
        doing=AwaitsGpu(rank.rank, at),
        because=(
            *faults,
            *((use,) if use is not None else ()),
            *((DriverSilent(),) if silent else ()),
            *movement(rank),
        ),
        fix=xid_fix(rank, evidence) or (_HARDWARE_FIX[0], _PROGRAM_FIX[0]),
        alternatives=(
            Possibility("slow-rank", "possible", NotRuledOut("long-kernel")),
            Possibility("blocked-call", "possible", NotRuledOut("not-the-gpu")),
        ),
        certainty="likely" if faults or silent else None,
        summary=AwaitsGpu(rank.rank, at),
        references=("NVIDIA/nccl#1063",),
    )


def _at_fault(rank: RankEvidence, own: Gpu | None) -> bool:
    """Whether the GPU itself is what the rank waits for. One that holds a collective waits for another rank; where the
    calls are not known, only one that holds no kernel at all is sure not to."""
    idle = own is not None and own.utilization_percent == 0
    if not rank.collectives:
        return idle
    record = read_record(rank)
    if not all(record.done(entry) for entry in rank.collectives):
        return False
    return idle or not busy(rank) or (own is not None and own.work is not None and own.work.working() is False)


def explain_held_up(rank: RankEvidence, wait: Wait, evidence: Evidence, waiters: tuple[int, ...]) -> Finding:
    """A rank whose GPU has not begun a collective that the GPUs of others stand in: a kernel of its own runs on. One
    that computes is at work; one that does not, or of which nothing tells, is stuck once it takes too long."""
    assert wait.event is not None
    host = next((host for host in evidence.hosts if host.host == rank.host), None)
    own = _own_gpu(rank, host) if host is not None else None
    at = current_where(rank)
    held = evidence.collected_at - wait.event.at
    late = GpuBehind(rank.rank, wait.op, wait.seq, held, waiters)
    works = own is not None and own.work is not None and own.work.working() is True and _alone_on(own, rank, evidence)
    if works:
        doing = Works(at, "gpu")
        return finding_of(
            Stand(
                cause="slow-rank",
                at=at,
                doing=doing,
                because=(late, *_uses(own)),
                fix=(Advice("let-it-work"), Advice("split-the-work")),
                alternatives=(Possibility("gpu-stuck", "possible", NotRuledOut("endless-kernel")),),
                summary=Does(rank.rank, doing),
                certainty="likely",
                outcome="slow",
            ),
            rank,
            evidence,
            waiters,
        )
    long = evidence.stall_after_s is not None and held >= evidence.stall_after_s
    return finding_of(
        Stand(
            cause="gpu-stuck",
            at=at,
            doing=AwaitsGpu(rank.rank, at),
            because=(late, *xid_lines(rank, evidence), *_uses(own)),
            fix=xid_fix(rank, evidence) or (_PROGRAM_FIX[0], _HARDWARE_FIX[0]),
            alternatives=(Possibility("slow-rank", "possible", NotRuledOut("long-kernel")),),
            certainty="likely" if long else "possible",
            summary=AwaitsGpu(rank.rank, at),
            references=("NVIDIA/nccl#1063",),
        ),
        rank,
        evidence,
        waiters,
    )


def _use(gpu: Gpu | None) -> GpuUse | None:
    if gpu is None or gpu.utilization_percent is None:
        return None
    return GpuUse(gpu.index, gpu.name, gpu.utilization_percent, None if gpu.work is None else gpu.work.working())


def _uses(gpu: Gpu | None) -> tuple[GpuUse, ...]:
    use = _use(gpu)
    return () if use is None else (use,)


def _alone_on(gpu: Gpu, rank: RankEvidence, evidence: Evidence) -> bool:
    """What a GPU does speaks for a rank only where no other rank uses it."""
    others = {seen.pid for seen in evidence.ranks if seen.host == rank.host and seen.rank != rank.rank}
    return not others & set(gpu.pids)


def xid_lines(rank: RankEvidence, evidence: Evidence) -> tuple[XidReported, ...]:
    """What the driver wrote into the kernel's log of the rank's host; that of its process first."""
    found = sorted((not own, xid, gpu) for own, xid, gpu in _xids(rank, evidence))
    return tuple(dict.fromkeys(XidReported(xid, gpu) for _, xid, gpu in found))[:3]


def xid_fix(rank: RankEvidence, evidence: Evidence) -> tuple[Advice, ...]:
    """What to do about the worst of them; empty without any."""
    numbers = {xid for _, xid, _ in _xids(rank, evidence)}
    if not numbers:
        return ()
    return _PROGRAM_FIX if numbers <= _OF_THE_PROGRAM else _HARDWARE_FIX


def _xids(rank: RankEvidence, evidence: Evidence) -> list[tuple[bool, int, str]]:
    """Whether it names the rank's process, number and GPU. An error of a program leaves the GPU to all others: one of
    another process says nothing about this rank."""
    pids = {rank.pid, *(child.pid for child in rank.children)}
    found = []
    for host in evidence.hosts:
        for line in host.kernel_log if host.host == rank.host else ():
            match = _XID.search(line)
            if match is None:
                continue
            own = match[3] is not None and int(match[3]) in pids
            if own or match[3] is None or int(match[2]) not in _OF_THE_PROGRAM:
                found.append((own, int(match[2]), match[1]))
    return found


def waits_for_busy_gpu(rank: RankEvidence, evidence: Evidence) -> bool:
    """Its GPU works, and it waits for that: alive. A GPU that only holds a waiting kernel says 100 % as well: where its
    counters tell that nothing is computed, it does not work."""
    host = next((host for host in evidence.hosts if host.host == rank.host), None)
    own = _own_gpu(rank, host) if host is not None else None
    if host is None or own is None or (own.work is not None and own.work.working() is False):
        return False
    return bool(own.utilization_percent) and _waits_for_gpu(rank, evidence, host)


def _own_gpu(rank: RankEvidence, host: HostEvidence) -> Gpu | None:
    pids = {rank.pid, *(child.pid for child in rank.children)}
    return next((gpu for gpu in host.gpus if pids & set(gpu.pids)), None)


def _waits_for_gpu(rank: RankEvidence, evidence: Evidence, host: HostEvidence) -> bool:
    thread = newest_main_thread(rank)
    if thread is None:
        return False
    inner = above_user(thread.frames)
    if any(in_module(frame, "torch/cuda/", _WAITS) for frame in inner):
        return True
    uses_gpu = _own_gpu(rank, host) is not None or bool(xid_lines(rank, evidence))
    line = source_line(evidence, innermost_user_frame(thread.frames))
    return uses_gpu and not inner and _READS_FROM_GPU.search(line) is not None
