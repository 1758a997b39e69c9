"""Signs of life that one short look does not show: a little work between sleeps, and lines that changed since."""

from __future__ import annotations

import msgspec

from rankscope.diagnosis.views import main_thread, same_stack
from rankscope.evidence.model import Evidence, Frame, Gpu, ProcessSample, RankEvidence

_WORK_A_WAKE_S = 0.001
"""Processor time of the main thread for each time it wakes: a test of a condition takes a tenth of it at most."""
_WORK_SHARE = 0.002
"""Below it lie the moments that our own looks take."""
_SPAN_S = 10.0
"""Long enough to see a loop that sleeps for seconds."""
_COARSE_SHARE = 0.01
_COARSE_SPAN_S = 2.0
"""Where only the processor time of the whole process is known, in ticks of 10 ms, and background threads count."""


class LittleWork(msgspec.Struct, frozen=True):
    wakes: int
    over_s: float
    cpu_s: float


def little_work(rank: RankEvidence) -> LittleWork | None:
    """The main thread sleeps, wakes, works for a moment and sleeps again: alive, however often a sample finds it asleep
    on the same line. A loop that only tests a condition wakes as often, and does next to nothing each time.

    Asked of the newest look alone, and of the looks before it too: a sleep may be longer than one look.
    """
    if not rank.processes:
        return None
    since = _since(rank, rank.processes[-1].at, tuple(sample.at for sample in rank.earlier_processes))
    longer = (*(sample for sample in rank.earlier_processes if sample.at >= since), *rank.processes)
    return _between(rank.processes) or _between(longer)


def recent_lines(rank: RankEvidence) -> tuple[tuple[Frame, ...], ...]:
    """The user's frames of the main thread, in this look and in those before it while the rank was still."""
    if not rank.stacks:
        return ()
    since = _since(rank, rank.stacks[-1].at, tuple(sample.at for sample in rank.earlier_stacks))
    samples = (*(sample for sample in rank.earlier_stacks if sample.at >= since), *rank.stacks)
    threads = (main_thread(sample) for sample in samples)
    return tuple(tuple(frame for frame in thread.frames if frame.user) for thread in threads if thread is not None)


def lines_changed(rank: RankEvidence) -> bool:
    """The user's code went on from one line to another between looks; what a library does beneath is not asked."""
    seen = {tuple((frame.file, frame.line) for frame in frames) for frames in recent_lines(rank)}
    return len(seen) > 1


def seen_alive(rank: RankEvidence, evidence: Evidence) -> bool:
    """One look saw the rank get on: its program moved from line to line, or the GPU that it uses computed. A GPU speaks
    for its users where all of them are ranks of this job; of strangers' work it tells nothing."""
    return (
        same_stack(rank) is False
        or lines_changed(rank)
        or any(_computes(gpu, rank, evidence) for gpu in _gpus(rank, evidence))
    )


def _gpus(rank: RankEvidence, evidence: Evidence) -> tuple[Gpu, ...]:
    pids = {rank.pid, *(child.pid for child in rank.children)}
    return tuple(gpu for host in evidence.hosts if host.host == rank.host for gpu in host.gpus if pids & set(gpu.pids))


def _computes(gpu: Gpu, rank: RankEvidence, evidence: Evidence) -> bool:
    own = {
        pid
        for seen in evidence.ranks
        if seen.host == rank.host
        for pid in (seen.pid, *(child.pid for child in seen.children))
    }
    return gpu.work is not None and gpu.work.working() is True and set(gpu.pids) <= own


def _since(rank: RankEvidence, now: float, times: tuple[float, ...]) -> float:
    """From when earlier samples count: since the rank fell still, and no further back than it takes to see enough. What
    it did a long time before says nothing about now."""
    if rank.still_for_s is None:
        return float("inf")
    fell_still = now - rank.still_for_s
    enough = [at for at in times if fell_still <= at <= now - _SPAN_S]
    return max(enough, default=fell_still)


def _between(samples: tuple[ProcessSample, ...]) -> LittleWork | None:
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    seconds = last.at - first.at
    if first.sleeps is None or last.sleeps is None or seconds <= 0:
        return None
    wakes = last.sleeps - first.sleeps
    if first.main_cpu_s is not None and last.main_cpu_s is not None:
        worked, least = last.main_cpu_s - first.main_cpu_s, _WORK_SHARE
    elif seconds >= _COARSE_SPAN_S:
        worked, least = last.cpu_s - first.cpu_s, _COARSE_SHARE
    else:
        return None
    if wakes < 1 or worked < wakes * _WORK_A_WAKE_S or worked < seconds * least:
        return None
    return LittleWork(wakes, seconds, worked)
