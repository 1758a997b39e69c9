"""Signs of life of the ranks of one attempt: progress on their pages, processor time, bytes, memory, a busy GPU."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rankscope.errors import EvidenceError
from rankscope.evidence.gpus import busy_processes
from rankscope.evidence.pages import Heartbeat, read_heartbeat
from rankscope.evidence.procfs import Pulse, pulse
from rankscope.launch.job import Job, RankProcess
from rankscope.launch.pulses import worked

NETWORK_AFTER_S = 1.0
"""What goes through sockets is not among the bytes read and written, and dearer: asked of ranks quiet for longer."""
_WINDOW_S = 1.0
"""Over which the processor time of a quiet rank is taken."""
_FIRST_WINDOW_S = 0.4
"""The same when it has only just fallen quiet: to know before the first close look that it computes."""
_GPU_PERIOD_S = 2.0
_LEAST_LATE_S = 2.0
_MANY_CALLS = 64


@dataclass(slots=True)
class _Trace:
    """What is remembered of one rank between two glances."""

    heartbeat: Heartbeat | None = None
    base: Pulse | None = None
    base_at: float = 0.0
    window_s: float = _FIRST_WINDOW_S
    longest_quiet_s: float = 0.0
    progress_at: float = 0.0
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=32))
    """Seconds between the newest signs of progress: the job's rhythm."""


class VitalSigns:
    """Every sign that is felt is noted as `life_at` of its rank."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._traces: dict[int, _Trace] = {}
        self._gpus_due = 0.0

    def feel(self, living: list[RankProcess], now: float) -> None:
        self._feel_gpus(living, now)
        for process in living:
            self._feel(process, now)

    def heartbeats(self) -> dict[int, Heartbeat]:
        """Rank → the newest that was read; only of ranks that have a page."""
        return {rank: trace.heartbeat for rank, trace in self._traces.items() if trace.heartbeat is not None}

    def longest_quiet_s(self) -> float:
        """From which a rank came back by itself."""
        return max((trace.longest_quiet_s for trace in self._traces.values()), default=0.0)

    def overdue_s(self, process: RankProcess, now: float) -> float:
        """Seconds by which the rank's next progress is late, by its own rhythm. A rank that waits for its GPU burns
        processor time and never looks still: only its rhythm tells."""
        trace = self._traces[process.rank]
        if not trace.gaps:
            return 0.0
        return now - trace.progress_at - max(_LEAST_LATE_S, 1.5 * max(trace.gaps))

    def forget_pulses(self) -> None:
        """After a close look: what that made the ranks do is no sign of life."""
        for trace in self._traces.values():
            trace.base = None

    def _feel_gpus(self, living: list[RankProcess], now: float) -> None:
        """A busy GPU is a sign of life of the ranks that use it."""
        if now < self._gpus_due:
            return
        busy = busy_processes(now - _GPU_PERIOD_S)
        if isinstance(busy, str):
            self._gpus_due = float("inf")  # no GPU, or a driver that does not tell
            return
        self._gpus_due = now + _GPU_PERIOD_S
        for process in living:
            if process.pid in busy:
                process.life_at = now

    def _feel(self, process: RankProcess, now: float) -> None:
        trace = self._traces.setdefault(process.rank, _Trace())
        alive = self._progressed(process, trace, now)
        if alive:
            # No pulse of a rank that makes progress: it is a dozen files that the kernel writes for us.
            trace.base, trace.window_s = None, _FIRST_WINDOW_S
        elif trace.base is None or now - trace.base_at >= trace.window_s:
            try:
                current = pulse(process.pid, network=now - process.life_at >= NETWORK_AFTER_S)
            except (ProcessLookupError, OSError):
                return  # it is ending; the next poll tells how
            if trace.base is not None:
                alive = worked(trace.base, current, now - trace.base_at)
                trace.window_s = _WINDOW_S
            trace.base, trace.base_at = current, now
        if alive:
            trace.longest_quiet_s = max(trace.longest_quiet_s, now - process.life_at)
            process.life_at = now

    def _progressed(self, process: RankProcess, trace: _Trace, now: float) -> bool:
        """By its page."""
        page = self._job.page_of(process)
        if page is None:
            return False
        try:
            heartbeat = read_heartbeat(page)
        except EvidenceError as error:
            self._job.note_problem(str(error))
            return False
        progressed = trace.heartbeat is not None and heartbeat.changed_at > trace.heartbeat.changed_at
        trace.heartbeat = heartbeat
        if progressed:
            # The rhythm is that of training: set-up and the first step take what they take. A program that makes no
            # optimizer steps has one too, once it has made many calls.
            if heartbeat.steps > 1 or heartbeat.calls >= _MANY_CALLS:
                trace.gaps.append(now - trace.progress_at)
            trace.progress_at = now
        return progressed
