"""What is said of GPUs, of ranks that wait for them, and of NCCL's own network."""

from __future__ import annotations

from rankscope.diagnosis.device import device_wait, device_works, own_gpu
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.launched import DoNotAnswer, GpuAtWork, LaunchedAlike, SpinsForGpu
from rankscope.diagnosis.launched import read_launched
from rankscope.evidence.model import Evidence, Gpu

_MOST_GPUS = 8


def device_facts(evidence: Evidence) -> tuple[Fact, ...]:
    """Which ranks wait for their GPUs, and what those do."""
    waits: dict[str, list[int]] = {}
    gpus: dict[tuple[str, int], tuple[Gpu, list[int]]] = {}
    for seen in evidence.ranks:
        if (call := device_wait(seen)) is not None:
            waits.setdefault(call, []).append(seen.rank)
        gpu = own_gpu(seen, evidence)
        if gpu is not None and gpu.work is not None:
            gpus.setdefault((seen.host, gpu.index), (gpu, []))[1].append(seen.rank)
    works = {seen.rank: device_works(seen, evidence) for seen in evidence.ranks}
    return (
        *(SpinsForGpu(tuple(ranks), call) for call, ranks in waits.items()),
        *(_gpu(gpu, tuple(ranks), works[ranks[0]]) for gpu, ranks in list(gpus.values())[:_MOST_GPUS]),
    )


def ras_facts(evidence: Evidence) -> tuple[Fact, ...]:
    """What NCCL told of a job in which it sees no odd rank, and whom it does not reach."""
    looks = next((host.ras for host in evidence.hosts if host.ras), ())
    if not looks:
        return ()
    launched = read_launched(evidence)
    found: list[Fact] = list(launched.apart()[:3]) if launched is not None else []
    if not found and looks[-1].communicators:
        found.append(LaunchedAlike(len(looks[-1].communicators)))
    for dead in (False, True):
        lost = tuple((gone.pid, gone.host) for gone in looks[-1].lost if gone.dead == dead)
        if lost:
            found.append(DoNotAnswer(lost, dead))
    return tuple(found)


def _gpu(gpu: Gpu, ranks: tuple[int, ...], works: bool | None) -> GpuAtWork:
    work = gpu.work
    assert work is not None
    units = [share for share in (work.tensor, work.fp32, work.fp16, work.fp64) if share is not None]
    return GpuAtWork(
        ranks=ranks,
        index=gpu.index,
        works=works,
        sm=work.sm,
        arithmetic=max(units, default=None),
        memory=work.dram if work.counters else work.memory_util,
        power_w=work.power_w,
        utilization_percent=gpu.utilization_percent,
    )
