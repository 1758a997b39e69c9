"""Small readings of the evidence that several rules need."""

from __future__ import annotations

from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.finding import Suspect
from rankscope.diagnosis.verdict import ProcessKind, Where
from rankscope.evidence.model import ChildProcess, Frame, ProcessSample, RankEvidence, StackSample, Thread

LIFE_CPU_SHARE = 0.05
"""Share of one core above which a process is at work; below lie polling loops and background threads."""
LIFE_IO_BYTES_PER_S = 4096
_SLEEPS_OF_A_LOOP = 4
_WORK_CPU_SHARE = 0.02


def main_thread(sample: StackSample) -> Thread | None:
    return next((thread for thread in sample.threads if thread.main), None)


def newest_main_thread(seen: RankEvidence | ChildProcess) -> Thread | None:
    return main_thread(seen.stacks[-1]) if seen.stacks else None


def innermost_user_frame(frames: tuple[Frame, ...]) -> Frame | None:
    return next((frame for frame in frames if frame.user), None)


def python_frames(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Without native frames, and without the probe's own wrappers, which only pass a call on."""
    return tuple(frame for frame in frames if not frame.native and not frame.file.startswith("<rankscope"))


def where(frame: Frame | None) -> Where | None:
    return None if frame is None else Where(file=frame.file, line=frame.line, function=frame.function)


def current_where(seen: RankEvidence | ChildProcess) -> Where | None:
    """The innermost user frame the process stands in, by its newest stack; where no stack could be had, the call the
    rank itself wrote down as entered and not left."""
    thread = newest_main_thread(seen)
    if thread is not None:
        return where(innermost_user_frame(thread.frames))
    if isinstance(seen, RankEvidence) and seen.progress is not None:
        inside = [call for call in seen.progress.calls if call.left_at is None and call.site]
        if inside:
            return where(inside[0].site[0])
    return None


def same_stack(seen: RankEvidence | ChildProcess) -> bool | None:
    """Whether the main thread stood on the same lines in all samples; None with fewer than two."""
    stacks = []
    for sample in seen.stacks:
        thread = main_thread(sample)
        if thread is not None:
            stacks.append(tuple((frame.file, frame.line) for frame in python_frames(thread.frames)))
    if len(stacks) < 2:
        return None
    return all(stack == stacks[0] for stack in stacks)


def cpu_share(samples: tuple[ProcessSample, ...]) -> float | None:
    """Cores kept busy between the first and the last sample."""
    if len(samples) < 2 or samples[-1].at <= samples[0].at:
        return None
    return max(0.0, samples[-1].cpu_s - samples[0].cpu_s) / (samples[-1].at - samples[0].at)


def io_rate(samples: tuple[ProcessSample, ...]) -> float | None:
    if len(samples) < 2 or samples[-1].at <= samples[0].at:
        return None
    first, last = samples[0], samples[-1]
    moved = last.read_bytes + last.write_bytes - first.read_bytes - first.write_bytes
    carried = (last.network_bytes or 0) - first.network_bytes if first.network_bytes is not None else 0
    return (max(0, moved) + max(0, carried)) / (last.at - first.at)


def on_its_way(seen: RankEvidence | None) -> bool:
    """What the rank sends is under way: bytes that the other end has not taken yet, or that it has just written."""
    if seen is None or not seen.processes:
        return False
    first, last = seen.processes[0], seen.processes[-1]
    written, seconds = last.write_bytes - first.write_bytes, last.at - first.at
    return last.unsent_bytes > 0 or written >= LIFE_IO_BYTES_PER_S * seconds > 0


def moving(seen: RankEvidence | ChildProcess) -> bool:
    """A sign of life between the samples: processor time, bytes read or written, or another line."""
    share, rate = cpu_share(seen.processes), io_rate(seen.processes)
    return (
        (share is not None and share >= LIFE_CPU_SHARE)
        or (rate is not None and rate >= LIFE_IO_BYTES_PER_S)
        or same_stack(seen) is False
    )


def works_through(seen: RankEvidence) -> bool:
    """The main thread went to sleep again and again between the samples, and used the processor: it came and went,
    though every sample happened to find it on the same line. A wait that polls sleeps often too, but does no work; one
    that spins works, but does not sleep."""
    sleeps = [sample.sleeps for sample in seen.processes]
    first, last = (sleeps[0], sleeps[-1]) if sleeps else (None, None)
    share = cpu_share(seen.processes)
    if first is None or last is None or share is None:
        return False
    return last - first >= _SLEEPS_OF_A_LOOP and share >= _WORK_CPU_SHARE


def alive(rank: RankEvidence) -> bool:
    return rank.exit is None


def rank_culprit(rank: RankEvidence, doing: Fact, at: Where | None, process: ProcessKind = "rank") -> Suspect:
    # Files of other tools do not always tell host and pid.
    host, pid = rank.host or None, rank.pid or None
    return Suspect(rank=rank.rank, host=host, pid=pid, process=process, where=at, doing=doing)
