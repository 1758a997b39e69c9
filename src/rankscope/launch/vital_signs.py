"""Signs of life of the ranks of one attempt: progress on their pages, processor time, bytes, memory, a moving stack.

A rank that waits for its GPU burns processor time for as long as it waits, and its GPU says 100 % while a kernel of
NCCL only waits there: neither is a sign of life by itself. Of a process that uses a GPU, processor time counts while
the rank is within its own rhythm, and again for a while after a look has seen its program move, or its GPU compute.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rankscope.diagnosis.rules.standing.life import seen_alive
from rankscope.errors import EvidenceError
from rankscope.evidence.gpus import uses_gpu
from rankscope.evidence.model import Evidence
from rankscope.evidence.pages import Heartbeat, read_heartbeat
from rankscope.evidence.procfs import Pulse, pulse
from rankscope.launch.job import Job, RankProcess
from rankscope.launch.pulses import computed, moved

NETWORK_AFTER_S = 1.0
"""What goes through sockets is not among the bytes read and written, and dearer: asked of ranks quiet for longer."""
_WINDOW_S = 1.0
"""Over which the processor time of a quiet rank is taken."""
_FIRST_WINDOW_S = 0.4
"""The same when it has only just fallen quiet: to know before the first close look that it computes."""
_GPU_PERIOD_S = 2.0
"""Between two looks at whether a process has begun to use a GPU."""
_LEAST_LATE_S = 2.0
_NO_RHYTHM_S = 10.0
"""How long processor time alone counts, of a rank that uses a GPU and has no rhythm yet."""
_TRUST_S = 10.0
_MOST_TRUST_S = 60.0
"""How long it counts after a look that saw the rank alive: longer from look to look, to leave long work alone."""
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
    sure_at: float = 0.0
    """Newest sign of life other than processor time that may be a wait for the GPU."""
    on_gpu: bool = False
    gpu_asked_at: float = 0.0
    trust_until: float = 0.0
    trust_s: float = _TRUST_S


class VitalSigns:
    """Every sign that is felt is noted as `life_at` of its rank."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._traces: dict[int, _Trace] = {}

    def feel(self, living: list[RankProcess], now: float) -> None:
        for process in living:
            process.memory.note(process.pid, now)
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

    def note_look(self, evidence: Evidence, now: float) -> None:
        """What a close look saw of the ranks of this node: those whose program moves, or whose GPU computes, live."""
        alive = {seen.rank for seen in evidence.ranks if seen.exit is None and seen_alive(seen, evidence)}
        for process in self._job.living():
            trace = self._traces.get(process.rank)
            if trace is None:
                continue
            if process.rank in alive:
                trace.trust_until, trace.trust_s = now + trace.trust_s, min(2 * trace.trust_s, _MOST_TRUST_S)
                trace.sure_at = process.life_at = now
            else:
                trace.trust_until, trace.trust_s = 0.0, _TRUST_S

    def _feel(self, process: RankProcess, now: float) -> None:
        trace = self._traces.setdefault(process.rank, _Trace(sure_at=process.life_at))
        sure = self._progressed(process, trace, now)
        busy = False
        if sure:
            # No pulse of a rank that makes progress: it is a dozen files that the kernel writes for us.
            trace.base, trace.window_s = None, _FIRST_WINDOW_S
        elif trace.base is None or now - trace.base_at >= trace.window_s:
            try:
                current = pulse(process.pid, network=now - process.life_at >= NETWORK_AFTER_S)
            except (ProcessLookupError, OSError):
                return  # it is ending; the next poll tells how
            if trace.base is not None:
                sure = moved(trace.base, current, now - trace.base_at)
                busy = computed(trace.base, current, now - trace.base_at)
                trace.window_s = _WINDOW_S
            trace.base, trace.base_at = current, now
        if sure or (busy and self._counts(process, trace, now)):
            trace.longest_quiet_s = max(trace.longest_quiet_s, now - process.life_at)
            process.life_at = now
            trace.sure_at = now if sure or not trace.on_gpu else trace.sure_at
        elif busy:
            process.life_at = min(process.life_at, trace.sure_at)

    def _counts(self, process: RankProcess, trace: _Trace, now: float) -> bool:
        """Whether processor time is a sign of life of this rank now."""
        if not trace.on_gpu and now - trace.gpu_asked_at >= _GPU_PERIOD_S:
            trace.gpu_asked_at, trace.on_gpu = now, uses_gpu(process.pid)
        if not trace.on_gpu or now < trace.trust_until:
            return True
        return self.overdue_s(process, now) <= 0 if trace.gaps else now - trace.sure_at < _NO_RHYTHM_S

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
