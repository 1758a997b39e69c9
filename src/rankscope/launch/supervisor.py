"""Between elastic and the diagnosis: takes the evidence before anything is stopped, and decides what is stopped."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rankscope.diagnosis.codec import verdict_to_json
from rankscope.diagnosis.rules.numbers.stragglers import kept_waiting
from rankscope.diagnosis.verdict import Straggler, Verdict
from rankscope.errors import EvidenceError
from rankscope.evidence.model import Evidence
from rankscope.evidence.pages import Heartbeat, read_heartbeat
from rankscope.evidence.store import save_evidence
from rankscope.launch.job import Job
from rankscope.launch.last_verdicts import good, interruption, stopped_at_once, undiagnosed
from rankscope.launch.pace import Pace
from rankscope.launch.process_tree import kill_descendants
from rankscope.launch.replicas import replicas_differ
from rankscope.launch.watch import Watcher
from rankscope.report import live
from rankscope.report.conclude import conclude
from rankscope.report.words import sentence

OnHang = Literal["auto", "stop", "report", "restart"]
OnNan = Literal["report", "stop"]

_ELASTIC_S = 8.0
"""How long elastic is given to begin stopping the ranks, on a job of several nodes."""
_SETTLE_S = 1.5
"""How long after a rank's failure the others are given to show whether they fail with it."""


class Supervisor:
    def __init__(self, job: Job, on_hang: OnHang, stall_after_s: float | None, on_nan: OnNan = "report") -> None:
        self._job = job
        self._on_hang = on_hang
        self._on_nan = on_nan
        self._pace = Pace(self._slow)
        self._watcher = Watcher(
            job,
            stall_after_s,
            on_verdict=self._hang,
            on_notice=self._notice,
            on_recovery=self._recovered,
            on_bad_numbers=self._bad_numbers,
            on_failure=self._failed_elsewhere,
            pace=self._pace,
        )
        self._lock = threading.RLock()  # a second signal asks for the verdict, whatever the main thread is at
        self._verdicts: dict[int, Verdict] = {}
        """Attempt → what ended it."""
        self._numbers: dict[int, Verdict] = {}
        """Attempt → where its numbers went bad."""
        self._notes: list[str] = []
        self.stop_requested = False
        self.stopped_for_hang = False
        self.stopped_for_nan = False
        self.interrupted_by: int | None = None
        self.restarts_left: Callable[[], int] = lambda: 0
        self.wake_agent: Callable[[], None] = lambda: None
        """Of elastic's agent, once there is one."""
        self.last_word: Callable[[], int] | None = None
        """Says the verdict and returns the exit code: for an end that elastic does not come to."""
        self._ruled: dict[int, bool] = {}
        """Attempt → whether the verdict of all nodes ended it for a hang."""
        self._failure_told: set[int] = set()
        """Attempts whose failure has its verdict, whether it was asked for here or by another node."""
        self._ruling_came = threading.Event()
        self._stopping = threading.Event()
        self._finished = threading.Event()

    def start(self) -> None:
        self._watcher.start()

    def finish(self) -> None:
        self._finished.set()
        self._watcher.stop()
        if self._job.nodes is not None:
            by = f"interrupted by signal {self.interrupted_by}" if self.interrupted_by is not None else "ended"
            self._job.nodes.close(by)

    @property
    def restarts_hangs(self) -> bool:
        return self._on_hang == "restart"

    def interrupted(self, number: int) -> None:
        self.interrupted_by = number

    def before_stop(self) -> None:
        """Called before elastic stops ranks, for whatever reason; nothing has been stopped yet."""
        job = self._job
        job.poll()
        self._stopping.set()
        with self._lock:
            known = job.attempt in self._verdicts
        if known or job.finished_well() or not job.ranks:
            job.stopping = True
            return
        trigger = "failure" if job.failed() else "interrupt"
        if trigger == "failure":
            self._settle()
        try:
            self._conclude(trigger)
        except Exception as error:  # noqa: BLE001  a fault of ours must not keep the ranks from being stopped
            job.note_problem(f"the diagnosis failed: {type(error).__name__}: {error}")
        job.stopping = True

    def _settle(self) -> None:
        deadline = time.monotonic() + _SETTLE_S
        while self._job.living() and time.monotonic() < deadline:
            time.sleep(0.05)
            self._job.poll()

    def _conclude(self, trigger: str) -> None:
        nodes = self._job.nodes
        evidence = self._job.collect(trigger) if trigger == "interrupt" else self._job.gather(trigger)
        if evidence is None:
            assert nodes is not None
            if self._ruling_came.wait(nodes.ruling_limit_s):
                return
            evidence = nodes.gather_alone(trigger)
        verdict = conclude(evidence)
        if trigger == "interrupt":
            verdict = interruption(verdict, evidence, self.interrupted_by)
        elif not self._first_to_tell(evidence.attempt):
            return
        self._keep(verdict, evidence)
        if nodes is not None:
            nodes.rule(verdict, stop=True, hang=False)
        if verdict.outcome in ("ok", "interrupted"):
            return
        if self.restarts_left() > 0:
            live.say(live.detected(verdict, "restarting the job"))
        elif self._job.living():
            live.say(live.ending(verdict, "stopping the other ranks"))

    def _first_to_tell(self, attempt: int) -> bool:
        """A failure is looked at when a rank here has ended and when another node asks: the first look counts. By the
        second the other node may have ended, and its ranks would be missed."""
        with self._lock:
            first = attempt not in self._failure_told
            self._failure_told.add(attempt)
        return first

    def _keep(self, verdict: Verdict, evidence: Evidence) -> None:
        verdict = self._saved(verdict, evidence, f"evidence/attempt_{evidence.attempt}")
        with self._lock:
            self._verdicts[evidence.attempt] = verdict
        self.write(verdict)

    def _saved(self, verdict: Verdict, evidence: Evidence, folder: str) -> Verdict:
        try:
            save_evidence(evidence, self._job.folder / folder)
        except EvidenceError as error:
            self._job.note_problem(str(error))
        return replace(verdict, evidence=folder)

    def _bad_numbers(self, verdict: Verdict, evidence: Evidence) -> None:
        """From the watcher: a value stopped being finite, or replicas differ. The job goes on, unless asked to stop."""
        verdict = self._saved(verdict, evidence, f"evidence/attempt_{evidence.attempt}_numbers")
        stop = self._on_nan == "stop" and verdict.outcome == "nan"
        if self._job.nodes is not None:
            self._job.nodes.rule(verdict, stop=stop, hang=False)
        self._tell_numbers(verdict, stop=stop)

    def _tell_numbers(self, verdict: Verdict, *, stop: bool) -> None:
        with self._lock:
            self._numbers[self._job.attempt] = verdict
            if stop:
                self._verdicts[self._job.attempt] = verdict
        self.write(verdict)
        then = "stopping the job" if stop else "nothing is stopped"
        option = f" (--on-nan {self._on_nan})" if verdict.outcome == "nan" else ""
        live.say(live.detected(verdict, then + option))
        if stop:
            self.stopped_for_nan = True
            self._request_stop()

    def write(self, verdict: Verdict) -> None:
        """verdict.json, as far as the disk lets us."""
        path = self._job.folder / "verdict.json"
        try:
            _replace(path, verdict_to_json(verdict))
        except OSError as error:
            self._job.note_problem(f"{path}: {error.strerror}")

    def _hang(self, verdict: Verdict, evidence: Evidence) -> None:
        """From the watcher: the job will not go on by itself."""
        stop = self._on_hang in ("stop", "restart") or (self._on_hang == "auto" and verdict.certainty == "proven")
        self._keep(verdict, evidence)
        if self._job.nodes is not None:
            self._job.nodes.rule(verdict, stop=stop, hang=True)
        if stop:
            then = "restarting the job" if self.restarts_hangs else "stopping the job"
        else:
            then = "watching on, nothing is stopped"
        live.say(live.detected(verdict, f"{then} (--on-hang {self._on_hang})"))
        if stop:
            self.stopped_for_hang = True
            self._request_stop()
            self._see_to_the_end()

    def _failed_elsewhere(self, verdict: Verdict, evidence: Evidence) -> None:
        """From the watcher of the node that speaks: a rank of another node has failed."""
        if not self._first_to_tell(evidence.attempt):
            return
        self._keep(verdict, evidence)
        if self._job.nodes is not None:
            self._job.nodes.rule(verdict, stop=True, hang=False)
        self._obey(verdict, stop=True, hang=False)

    def ruled(self, verdict: Verdict, stop: bool, hang: bool, speaker: str) -> None:
        """From the node that speaks for the job: its verdict is this node's too."""
        verdict = replace(verdict, notes=(*verdict.notes, f"the evidence of all nodes lies on {speaker}"))
        if verdict.outcome == "nan" or verdict.cause == "parameters-diverged":
            self._tell_numbers(verdict, stop=stop)
            return
        with self._lock:
            self._verdicts[self._job.attempt] = verdict
        self.write(verdict)
        self._ruling_came.set()
        self._obey(verdict, stop=stop, hang=hang)

    def _obey(self, verdict: Verdict, *, stop: bool, hang: bool) -> None:
        if verdict.outcome == "ok":
            return
        with self._lock:
            self._ruled[self._job.attempt] = hang and stop
        restarts = self.restarts_left() > 0 and (self.restarts_hangs or not hang)
        then = "restarting the job" if restarts else "stopping the job" if stop else "watching on, nothing is stopped"
        ends_at_once = stop and not hang and not restarts
        live.say(live.ending(verdict, then) if ends_at_once else live.detected(verdict, then))
        if not stop or (restarts and not hang):
            return  # elastic restarts a failed job by itself, on all nodes
        self.stopped_for_hang = self.stopped_for_hang or hang
        self._request_stop()
        self._see_to_the_end()

    def _request_stop(self) -> None:
        self.stop_requested = True
        self.wake_agent()

    def _see_to_the_end(self) -> None:
        """Elastic asks the rendezvous store about everything, and waits for ever on one that is frozen or cut off."""
        if self._job.nodes is not None and self.last_word is not None and self.restarts_left() == 0:
            threading.Thread(target=self._end_without_elastic, name="rankscope-end", daemon=True).start()

    def _end_without_elastic(self) -> None:
        deadline = time.monotonic() + _ELASTIC_S
        while time.monotonic() < deadline or (self._stopping.is_set() and self._job.living()):
            if self._finished.wait(0.2):
                return
            self._job.poll()
        if self._stopping.is_set() and self._finished.wait(_ELASTIC_S / 2):
            return
        self._job.stopping = True
        kill_descendants(os.getpid())
        self._job.poll()
        self._job.pump.finish(2.0)
        assert self.last_word is not None
        code = self.last_word()
        if self._job.nodes is not None:
            self._job.nodes.close("ended")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _notice(self, verdict: Verdict) -> None:
        self._notes.append(verdict.headline)
        live.say(live.noticed(verdict))

    def _slow(self, stragglers: tuple[Straggler, ...], ranks: list[int]) -> None:
        """From the watcher: the job goes on, and could go on faster."""
        live.say(live.slowed(sentence(kept_waiting(stragglers, ranks))))

    def _recovered(self, seconds: float) -> None:
        with self._lock:
            self._verdicts.pop(self._job.attempt, None)
        text = f"the job goes on after {seconds:.0f} s of stillness"
        self._notes.append(text)
        live.say(text)

    def verdict(self) -> Verdict:
        """What is to be said of the whole run, now that everything has ended."""
        job = self._job
        job.poll()
        codes = {process.rank: process.exit.code if process.exit is not None else None for process in job.ranks}
        with self._lock:
            verdict = self._verdicts.get(job.attempt)
            ruled = job.attempt in self._ruled
            earlier = {attempt: v for attempt, v in self._verdicts.items() if attempt != job.attempt}
        bad = self._numbers.get(job.attempt) or self._found_at_the_end()
        if verdict is not None and job.nodes is not None:
            codes = {**verdict.exit_codes, **codes}
        if job.finished_well() and not self.stopped_for_hang and self.interrupted_by is None and not ruled:
            verdict = bad or good(job)
        elif verdict is None and job.finished_well():
            verdict = good(job)
        elif verdict is None and self.interrupted_by is not None and not job.failed():
            verdict = stopped_at_once(job, self.interrupted_by)
        elif verdict is None:
            verdict = undiagnosed(job)
        notes = [f"attempt {attempt} had ended: {past.headline}" for attempt, past in sorted(earlier.items())]
        if bad is not None and verdict.cause != bad.cause:
            notes.append(f"before that, {bad.headline}")
        stragglers = self._stragglers()
        if stragglers and verdict.outcome in ("ok", "nan", "corrupt", "interrupted"):
            notes.append(sentence(kept_waiting(stragglers, [process.rank for process in job.ranks])))
        if verdict.outcome == "ok":
            notes += self._unused_losses()
        return replace(
            verdict,
            stragglers=stragglers,
            stages=verdict.stages or job.stage_texts(),
            exit_codes=codes,
            ended_at=time.time(),
            started_at=job.started_at,
            world_size=job.world_size,
            notes=(
                *notes,
                *(note for note in dict.fromkeys(self._notes) if note != verdict.headline),
                *job.problems,
                *job.pump.problems,
            ),
        )

    def _heartbeats(self) -> dict[int, Heartbeat]:
        found = {}
        for rank, page in self._watcher.pages().items():
            try:
                found[rank] = read_heartbeat(page)
            except EvidenceError as error:
                self._job.note_problem(str(error))
        return found

    def _stragglers(self) -> tuple[Straggler, ...]:
        pages = self._watcher.pages()
        if len(pages) < len(self._job.ranks):
            return ()
        try:
            return self._pace.of_the_run(pages)
        except EvidenceError as error:
            self._job.note_problem(str(error))
            return ()

    def _unused_losses(self) -> list[str]:
        """Losses that were not finite and never reached a parameter: meant, perhaps, but worth knowing."""
        return [
            f"rank {rank} called backward {_times(beat.bad_losses)} on a loss that was not finite; "
            "no optimizer applied what came of it"
            for rank, beat in sorted(self._heartbeats().items())
            if beat.bad_losses and not beat.non_finite
        ][:3]

    def _found_at_the_end(self) -> Verdict | None:
        """A job may have ended before the watcher looked."""
        if not self._job.finished_well():
            return None
        noted = any(beat.non_finite for beat in self._heartbeats().values())
        if not noted and not replicas_differ(self._watcher.pages()):
            return None
        evidence = self._job.collect("end")
        if len(evidence.ranks) < evidence.world_size:
            self._notes.append("numbers went bad, and the job ended before all nodes could be asked where that began")
            return None
        verdict = conclude(evidence)
        if verdict.outcome == "ok":
            return None
        verdict = self._saved(verdict, evidence, f"evidence/attempt_{evidence.attempt}_numbers")
        self._numbers[evidence.attempt] = verdict
        return verdict


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(data)
    temporary.replace(path)
