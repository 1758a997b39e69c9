"""Watches a running job: learns its rhythm, looks closely when it falls still, and says when it will not go on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.diagnosis.verdict import Verdict
from rankscope.diagnosis.views import LIFE_CPU_SHARE, LIFE_IO_BYTES_PER_S
from rankscope.errors import EvidenceError
from rankscope.evidence.collect import find_page
from rankscope.evidence.gpus import busy_processes
from rankscope.evidence.history import with_earlier
from rankscope.evidence.model import Evidence, RankEvidence
from rankscope.evidence.pages import Heartbeat, read_heartbeat
from rankscope.evidence.procfs import Pulse, pulse
from rankscope.launch.job import Job, RankProcess
from rankscope.launch.pace import Pace
from rankscope.launch.replicas import replicas_differ
from rankscope.report.conclude import conclude

PERIOD_S = 0.5
"""Between glances at a job that goes on: every one of them takes processor time from ranks that use all cores."""
ALERT_PERIOD_S = 0.2
"""Between glances while a rank is still."""
FIRST_LOOK_S = 1.0
"""Stillness of all ranks after which the first close look is taken."""
LOOK_S = 1.0
"""About what a look takes."""
LEAST_THRESHOLD_S = 30.0
QUIET_FACTOR = 4.0
"""The automatic threshold, in longest quiet stretches from which the job came back by itself."""
_WINDOW_S = 1.0
"""Over which the processor time of a quiet rank is taken."""
_FIRST_WINDOW_S = 0.4
"""The same when it has only just fallen quiet: to know before the first close look that it computes."""
_GPU_PERIOD_S = 2.0
_GROWTH_BYTES = 1 << 20
_LATE_LOOK_S = 60.0
_NOTES_SETTLE_S = 0.7
_REPLICAS_PERIOD_S = 15.0
_TEARDOWN_S = 6.0
"""What an interpreter may take to end after an exception."""


@dataclass(slots=True)
class _Trace:
    """What is remembered of one rank between two glances."""

    page: Path | None = None
    heartbeat: Heartbeat | None = None
    base: Pulse | None = None
    base_at: float = 0.0
    window_s: float = _FIRST_WINDOW_S
    longest_quiet_s: float = 0.0
    progress_at: float = 0.0
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=32))
    """Seconds between the newest signs of progress: the job's rhythm."""


@dataclass(slots=True)
class _Episode:
    """A stretch in which at least one rank has been still."""

    since: float
    next_look: float
    announced: set[str] = field(default_factory=set)
    judged: set[int] = field(default_factory=set)
    """Ranks whose stillness had reached the threshold at a look."""
    too_early: set[int] = field(default_factory=set)
    """Ranks whose stillness was still below it in what the last look found: they may have reached it meanwhile, but the
    verdict does not know."""
    reported: Verdict | None = None
    seen: Evidence | None = None
    """What the last look saw, with what it knew of those before."""


class Watcher:
    """Runs in a thread of its own until `stop`.

    `on_verdict(verdict, evidence)` is called once per stretch for a proven or likely hang; `on_notice(verdict)` once
    per stretch for a rank that others wait for; `on_recovery(seconds)` when a reported job goes on after all;
    `on_bad_numbers(verdict, evidence)` once per attempt when a value stopped being finite, once when replicas differ.
    `on_failure(verdict, evidence)` when a rank of another node has failed.
    """

    def __init__(
        self,
        job: Job,
        stall_after_s: float | None,
        on_verdict: Callable[[Verdict, Evidence], None],
        on_notice: Callable[[Verdict], None],
        on_recovery: Callable[[float], None],
        on_bad_numbers: Callable[[Verdict, Evidence], None],
        on_failure: Callable[[Verdict, Evidence], None],
        pace: Pace,
    ) -> None:
        self._job = job
        self._fixed_threshold = stall_after_s
        self._on_verdict = on_verdict
        self._on_notice = on_notice
        self._on_recovery = on_recovery
        self._on_bad_numbers = on_bad_numbers
        self._pace = pace
        self._non_finite_since: float | None = None
        self._non_finite_told = False
        self._numbers_told: set[str] = set()
        self._replicas_due = 0.0
        self._on_failure = on_failure
        self._traces: dict[int, _Trace] = {}
        self._attempt = -1
        self._gpus_due = 0.0
        self._episode: _Episode | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankscope-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def threshold(self) -> float:
        """Seconds of stillness after which a wait counts as a likely hang."""
        if self._fixed_threshold is not None:
            return self._fixed_threshold
        longest = max((trace.longest_quiet_s for trace in self._traces.values()), default=0.0)
        return max(LEAST_THRESHOLD_S, QUIET_FACTOR * longest)

    def _run(self) -> None:
        while not self._stop.wait(self._period()):
            job = self._job
            if job.stopping or not job.ranks:
                continue
            if job.attempt != self._attempt:
                self._attempt, self._traces, self._episode = job.attempt, {}, None
                self._non_finite_since, self._non_finite_told, self._replicas_due = None, False, 0.0
                self._numbers_told.clear()
                self._pace.restart()
            job.poll()
            if job.failed() and job.nodes is None:
                continue  # elastic stops the job and asks for the evidence itself
            try:
                self._glance(time.time())
            except Exception as error:  # noqa: BLE001  a fault of ours must not end the watching; it is told at the end
                job.note_problem(f"a look at the job failed: {type(error).__name__}: {error}")

    def _period(self) -> float:
        now = time.time()
        still = any(now - process.life_at > PERIOD_S for process in self._job.ranks if process.exit is None)
        return ALERT_PERIOD_S if still else PERIOD_S

    def _glance(self, now: float) -> None:
        living = self._job.living()
        if self._look_for_others(now):
            return
        if self._job.failed():
            return  # elastic stops the job and asks for the evidence itself
        self._feel_gpus(living, now)
        for process in living:
            self._feel(process, now)
        self._mind_numbers(now)
        self._mind_replicas(now)
        if len(living) == len(self._job.ranks):
            beats = {process.rank: self._traces[process.rank].heartbeat for process in living}
            phases = {rank: beat.phases if beat is not None else None for rank, beat in beats.items()}
            self._pace.glance(phases, {process.rank: process.pid for process in living})
        if not living or self._job.pump.blocked_s > 0.5:
            # A console that nobody reads holds the ranks back; that is no fault of theirs.
            for process in living:
                process.life_at = now
            self._episode = None
            return
        stillness = [now - process.life_at for process in living]
        overdue = min(self._overdue(process, now) for process in living)
        if max(stillness) < FIRST_LOOK_S and overdue <= 0:
            self._end_episode(now)
            return
        if self._episode is None:
            since = now - max(*stillness, overdue)
            self._episode = _Episode(since=since, next_look=since + FIRST_LOOK_S)
        all_still = min(stillness) >= FIRST_LOOK_S * 0.8 or overdue > 0
        due = self._episode.next_look if all_still else max(self._episode.next_look, self._episode.since + 5.0)
        # A look takes about a second: it begins a little early, to have its answer at the threshold.
        ripe = {p.rank for p in living if now - p.life_at >= self.threshold() - LOOK_S}
        if now >= due or not ripe <= self._episode.judged:
            self._look(self._episode)
            ended = time.time()
            still = {p.rank for p in living if ended - p.life_at >= self.threshold()}
            self._episode.judged |= still - self._episode.too_early

    def pages(self) -> dict[int, Path]:
        """Rank → its page, of this attempt, also after its end."""
        found = {}
        for process in self._job.ranks:
            trace = self._traces.get(process.rank)
            page = trace.page if trace is not None else None
            page = page or find_page(self._job.pages, self._job.attempt, process.pid)
            if page is not None:
                found[process.rank] = page
        return found

    def _mind_numbers(self, now: float) -> None:
        """Ranks note a non-finite value a step apart: the one that it began on may be the last to say so."""
        if self._non_finite_told:
            return
        noted = any(t.heartbeat is not None and t.heartbeat.non_finite for t in self._traces.values())
        if noted and self._non_finite_since is None:
            self._non_finite_since = now
        if self._non_finite_since is None or now < self._non_finite_since + _NOTES_SETTLE_S:
            return
        self._non_finite_told = True
        self._judge_numbers()

    def _judge_numbers(self) -> None:
        """On several nodes the reduction has given the value to all of them: only the evidence of all tells where it
        began, and only the node that speaks has it."""
        evidence = self._job.gather("non-finite")
        if evidence is None:
            return
        if len(evidence.ranks) < evidence.world_size:
            self._job.note_problem(
                "numbers went bad; not all nodes could be asked where that began, so nobody is named"
            )
            return
        verdict = conclude(evidence)
        kind = "nan" if verdict.outcome == "nan" else verdict.cause or ""
        if kind not in ("nan", "parameters-diverged") or kind in self._numbers_told:
            return
        if not self._stop.is_set() and not self._job.stopping:
            self._numbers_told.add(kind)
            self._on_bad_numbers(verdict, evidence)

    def _mind_replicas(self, now: float) -> None:
        """Compares what the ranks wrote down of parameters that must be equal, now and then."""
        if now < self._replicas_due or self._non_finite_told:
            return
        self._replicas_due = now + _REPLICAS_PERIOD_S
        if not any(trace.heartbeat is not None and trace.heartbeat.steps for trace in self._traces.values()):
            return
        if not replicas_differ(self.pages()):
            return
        self._replicas_due = float("inf")
        self._judge_numbers()

    def _look_for_others(self, now: float) -> bool:
        """Another node of the job has asked for a look; only the one that speaks takes it."""
        nodes = self._job.nodes
        if nodes is None:
            return False
        if self._episode is None:
            nodes.tell_still(False)
        wanted = nodes.look_wanted()
        if wanted is None:
            return False
        if wanted == "failure":
            evidence = nodes.gather(wanted)
            if evidence is not None and not self._stop.is_set() and not self._job.stopping:
                self._on_failure(conclude(evidence), evidence)
            return True
        if wanted == "non-finite":
            self._judge_numbers()
            return True
        if self._episode is None:
            self._episode = _Episode(since=now, next_look=now)
        self._look(self._episode)
        return True

    def _failed_elsewhere(self, evidence: Evidence) -> bool:
        own = {process.rank for process in self._job.ranks}
        return self._job.nodes is not None and any(map(_ended_badly, (r for r in evidence.ranks if r.rank not in own)))

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
        """Notes a sign of life: progress, processor time, bytes moved, memory taken."""
        trace = self._traces.setdefault(process.rank, _Trace())
        alive = False
        if trace.page is None:
            trace.page = find_page(self._job.pages, self._job.attempt, process.pid)
        if trace.page is not None:
            try:
                heartbeat = read_heartbeat(trace.page)
            except EvidenceError as error:
                self._job.note_problem(str(error))
            else:
                alive = trace.heartbeat is not None and heartbeat.changed_at > trace.heartbeat.changed_at
                trace.heartbeat = heartbeat
                if alive:
                    # The rhythm is that of training: set-up and the first step take what they take.
                    if heartbeat.steps > 1:
                        trace.gaps.append(now - trace.progress_at)
                    trace.progress_at = now
        if alive:
            # No pulse of a rank that makes progress: it is a dozen files that the kernel writes for us.
            trace.base, trace.window_s = None, _FIRST_WINDOW_S
        elif trace.base is None or now - trace.base_at >= trace.window_s:
            # What goes through sockets is not among the bytes read and written, and dearer: it is asked of those that
            # are quiet for longer.
            try:
                current = pulse(process.pid, network=now - process.life_at >= FIRST_LOOK_S)
            except (ProcessLookupError, OSError):
                return  # it is ending; the next poll tells how
            if trace.base is not None:
                alive = _worked(trace.base, current, now - trace.base_at)
                trace.window_s = _WINDOW_S
            trace.base, trace.base_at = current, now
        if alive:
            trace.longest_quiet_s = max(trace.longest_quiet_s, now - process.life_at)
            process.life_at = now

    def _overdue(self, process: RankProcess, now: float) -> float:
        """Seconds by which the rank's next progress is late, by its own rhythm. A rank that waits for its GPU burns
        processor time and never looks still: only its rhythm tells."""
        trace = self._traces[process.rank]
        if not trace.gaps:
            return 0.0
        return now - trace.progress_at - max(2 * FIRST_LOOK_S, 1.5 * max(trace.gaps))

    def _end_episode(self, now: float) -> None:
        if self._job.nodes is not None and self._job.nodes.speaks and self._job.nodes.others_still():
            return  # here all is well, elsewhere it is not
        episode, self._episode = self._episode, None
        if episode is not None and episode.reported is not None:
            self._on_recovery(now - episode.since)

    def _look(self, episode: _Episode) -> None:
        self._job.stall_after_s = self.threshold()
        episode.too_early = set()
        if self._job.nodes is not None:
            self._job.nodes.tell_still(True)
        evidence = self._job.gather("still")
        if evidence is None:
            now = time.time()
            episode.next_look = now + min(max(now - episode.since, 0.5), _LATE_LOOK_S)
            return
        episode.seen = evidence = with_earlier(evidence, episode.seen)
        episode.too_early = {
            seen.rank for seen in evidence.ranks if seen.still_for_s is not None and seen.still_for_s < self.threshold()
        }
        for trace in self._traces.values():
            trace.base = None  # what the look itself made the ranks do is no sign of life
        if self._stop.is_set() or self._job.stopping or self._job.failed():
            return
        verdict = conclude(evidence)
        now = time.time()
        quiet = now - episode.since
        episode.next_look = now + min(max(quiet, 0.5), _LATE_LOOK_S)
        if verdict.outcome == "hang" and verdict.certainty in ("proven", "likely"):
            if episode.reported is None or episode.reported.certainty != verdict.certainty:
                episode.reported = verdict
                self._on_verdict(verdict, evidence)
        elif verdict.outcome == "crash" and self._failed_elsewhere(evidence):
            self._on_failure(verdict, evidence)  # with the code of that rank, and its node waits for the verdict
        elif verdict.outcome == "crash" and verdict.certainty == "proven":
            # An ended or failing rank whose peers wait on, or an exception hidden behind a wait. A rank whose exception
            # nobody caught is about to end by itself, with a code of its own.
            if _just_raised(verdict, evidence, now):
                episode.next_look = now + FIRST_LOOK_S
            elif episode.reported is None:
                episode.reported = verdict
                self._on_verdict(verdict, evidence)
        elif verdict.outcome in ("slow", "hang") and quiet >= min(10.0, self.threshold()):
            key = f"{verdict.cause} {[culprit.rank for culprit in verdict.culprits]}"
            if key not in episode.announced and verdict.culprits:
                episode.announced.add(key)
                self._on_notice(verdict)


def _ended_badly(seen: RankEvidence) -> bool:
    return seen.exit is not None and seen.exit.code != 0 and not seen.exit.by_launcher


def _just_raised(verdict: Verdict, evidence: Evidence, now: float) -> bool:
    guilty = {culprit.rank for culprit in verdict.culprits}
    return any(
        error.source == "hook" and error.at is not None and now - error.at < _TEARDOWN_S
        for seen in evidence.ranks
        if seen.rank in guilty and seen.exit is None
        for error in seen.exceptions
    )


def _worked(before: Pulse, after: Pulse, seconds: float) -> bool:
    return (
        (after.cpu_s - before.cpu_s) / seconds >= LIFE_CPU_SHARE
        or (after.io_bytes - before.io_bytes) / seconds >= LIFE_IO_BYTES_PER_S
        or after.rss_bytes - before.rss_bytes >= _GROWTH_BYTES
        or _carried(before, after) / seconds >= LIFE_IO_BYTES_PER_S
    )


def _carried(before: Pulse, after: Pulse) -> int:
    """Through TCP connections; 0 where it is not known of both moments."""
    if before.network_bytes is None or after.network_bytes is None:
        return 0
    return after.network_bytes - before.network_bytes
