"""A rank that waits for its GPU, and what the driver reports of GPUs."""

from __future__ import annotations

import re

from rankscope.diagnosis.finding import Possibility
from rankscope.diagnosis.rules.standing.frames import above_user, in_module, source_line
from rankscope.diagnosis.rules.standing.stand import Stand, busy, movement
from rankscope.diagnosis.views import current_where, innermost_user_frame, newest_main_thread, place, same_stack
from rankscope.evidence.model import Evidence, Gpu, HostEvidence, RankEvidence

_WAITS = frozenset({"synchronize", "wait", "item", "cpu", "tolist", "numpy", "current_stream", "_lazy_init"})
_READS_FROM_GPU = re.compile(r"\.(?:item|cpu|tolist|numpy|nonzero)\(|\bsynchronize\(|\b(?:float|int|bool|print)\(")
_XID = re.compile(r"Xid \((?:PCI:)?([^)]*)\): (\d+)(?:, pid='?(\d+))?")
_XID_MEANING = {
    13: "a kernel of the program accessed memory wrongly",
    31: "a kernel of the program touched memory that is not mapped",
    43: "a kernel of the program was stopped after an error",
    45: "the program's work was removed from the GPU, after another error or a kill",
    48: "the GPU's memory has an error that cannot be corrected",
    61: "the GPU's own controller stopped",
    62: "the GPU's own controller stopped",
    63: "a row of the GPU's memory was retired",
    64: "a row of the GPU's memory could not be retired",
    74: "an NVLink connection failed",
    79: "the GPU has fallen off the bus",
    94: "an error of the GPU's memory, contained to one program",
    95: "an error of the GPU's memory that spread",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
}
_OF_THE_PROGRAM = frozenset({13, 31, 43, 45})
_HARDWARE_FIX = (
    "take this GPU out (drain the node, nvidia-smi -q, reset or reboot), and start the job without it",
    "look the Xid number up in NVIDIA's list; one that comes again needs the vendor",
)
_PROGRAM_FIX = (
    "run again with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer: the kernel that does it is then named",
    "a wrong index (labels beyond the classes, token ids beyond the vocabulary) is the usual reason",
)


def gpu_stuck(rank: RankEvidence, evidence: Evidence) -> Stand | None:
    """A rank that stands in a wait for a GPU which is at fault or does nothing; a GPU that works is no fault."""
    host = next((host for host in evidence.hosts if host.host == rank.host), None)
    if host is None or not _waits_for_gpu(rank, evidence, host) or same_stack(rank) is False:
        return None
    faults = xid_lines(rank, evidence)
    silent = "no answer" in host.missing.get("gpus", "") or any(gpu.name.endswith("not answer") for gpu in host.gpus)
    own = _own_gpu(rank, host)
    idle = own is not None and own.utilization_percent == 0
    if not faults and not silent and (busy(rank) and not idle):
        return None
    at = current_where(rank)
    state = []
    if own is not None and own.utilization_percent is not None:
        state.append(f"GPU {own.index} ({own.name}) is at {own.utilization_percent} %")
    if silent:
        state.append("the driver gives no answer about a GPU")
    return Stand(
        cause="gpu-stuck",
        at=at,
        doing="waiting for its GPU",
        because=(*faults, *state, *movement(rank)),
        fix=xid_fix(rank, evidence) or _HARDWARE_FIX[:1] + _PROGRAM_FIX[:1],
        alternatives=(
            Possibility("slow-rank", "possible", "a long kernel looks the same until it ends"),
            Possibility("blocked-call", "possible", "the call may wait for something else than the GPU"),
        ),
        certainty="likely" if faults or silent else None,
        summary=f"rank {rank.rank} waits in {place(at)} for its GPU, which does not finish",
        references=("NVIDIA/nccl#1063",),
    )


def xid_lines(rank: RankEvidence, evidence: Evidence) -> tuple[str, ...]:
    """What the driver wrote into the kernel's log of the rank's host, with what it means; that of its process first."""
    found = []
    for host in evidence.hosts:
        for line in host.kernel_log if host.host == rank.host else ():
            match = _XID.search(line)
            if match is not None:
                meaning = _XID_MEANING.get(int(match[2]), "a fault of the GPU")
                own = match[3] is not None and int(match[3]) == rank.pid
                found.append((not own, f"the driver reported Xid {match[2]} of GPU {match[1]}: {meaning}"))
    return tuple(dict.fromkeys(text for _, text in sorted(found)))[:3]


def xid_fix(rank: RankEvidence, evidence: Evidence) -> tuple[str, ...]:
    """What to do about the worst of them; empty without any."""
    numbers = {
        int(match[2])
        for host in evidence.hosts
        if host.host == rank.host
        for line in host.kernel_log
        if (match := _XID.search(line)) is not None
    }
    if not numbers:
        return ()
    return _PROGRAM_FIX if numbers <= _OF_THE_PROGRAM else _HARDWARE_FIX


def waits_for_busy_gpu(rank: RankEvidence, evidence: Evidence) -> bool:
    """Its GPU works, and it waits for that: alive."""
    host = next((host for host in evidence.hosts if host.host == rank.host), None)
    own = _own_gpu(rank, host) if host is not None else None
    return (
        host is not None and own is not None and bool(own.utilization_percent) and _waits_for_gpu(rank, evidence, host)
    )


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
