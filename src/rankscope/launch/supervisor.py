"""Between elastic and the diagnosis: takes the evidence before anything is stopped, and decides what is stopped."""

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rankscope.diagnosis.codec import verdict_to_json
from rankscope.diagnosis.diagnose import diagnose, exit_codes
from rankscope.diagnosis.stragglers import sentence
from rankscope.diagnosis.verdict import Alternative, Straggler, Verdict
from rankscope.errors import EvidenceError
from rankscope.evidence.model import Evidence
from rankscope.evidence.pages import Heartbeat, read_heartbeat
from rankscope.evidence.store import save_evidence
from rankscope.launch.job import Job
from rankscope.launch.pace import Pace
from rankscope.launch.watch import Watcher
from rankscope.report import live

OnHang = Literal["auto", "stop", "report", "restart"]
OnNan = Literal["report", "stop"]

_SETTLE_S = 1.5
"""How long after a rank's failure the others are given to show whether they fail with it."""


class Supervisor:
    def __init__(self, job: Job, on_hang: OnHang, stall_after_s: float | None, on_nan: OnNan = "report") -> None:
        self._job = job
        self._on_hang = on_hang
        self._on_nan = on_nan
        self._pace = Pace(self._slow)
        self._watcher = Watcher(
            job, stall_after_s, self._hang, self._notice, self._recovered, self._non_finite, self._pace
        )
        self._lock = threading.Lock()
        self._verdicts: dict[int, Verdict] = {}
        """Attempt → what ended it."""
        self._non_finites: dict[int, Verdict] = {}
        """Attempt → where a value of it stopped being finite."""
        self._notes: list[str] = []
        self.stop_requested = False
        self.stopped_for_hang = False
        self.stopped_for_nan = False
        self.interrupted_by: int | None = None

    def start(self) -> None:
        self._watcher.start()

    def finish(self) -> None:
        self._watcher.stop()

    @property
    def restarts_hangs(self) -> bool:
        return self._on_hang == "restart"

    def interrupted(self, number: int) -> None:
        self.interrupted_by = number

    def before_stop(self) -> None:
        """Called before elastic stops ranks, for whatever reason; nothing has been stopped yet."""
        job = self._job
        job.poll()
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
        evidence = self._job.collect(trigger)
        verdict = diagnose(evidence)
        if trigger == "interrupt":
            verdict = _interruption(verdict, evidence, self.interrupted_by)
        self._keep(verdict, evidence)
        if verdict.outcome not in ("ok", "interrupted"):
            live.say(live.detected(verdict, "stopping the other ranks" if self._job.living() else ""))

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

    def _non_finite(self, verdict: Verdict, evidence: Evidence) -> None:
        """From the watcher: a value stopped being finite. The job goes on, unless it was asked to stop."""
        verdict = self._saved(verdict, evidence, f"evidence/attempt_{evidence.attempt}_non_finite")
        stop = self._on_nan == "stop"
        with self._lock:
            self._non_finites[evidence.attempt] = verdict
            if stop:
                self._verdicts[evidence.attempt] = verdict
        self.write(verdict)
        live.say(
            live.detected(verdict, f"{'stopping the job' if stop else 'the job goes on'} (--on-nan {self._on_nan})")
        )
        if stop:
            self.stopped_for_nan = True
            self.stop_requested = True

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
        if stop:
            then = "restarting the job" if self.restarts_hangs else "stopping the job"
        else:
            then = "watching on, nothing is stopped"
        live.say(live.detected(verdict, f"{then} (--on-hang {self._on_hang})"))
        if stop:
            self.stopped_for_hang = True
            self.stop_requested = True

    def _notice(self, verdict: Verdict) -> None:
        text = live.noticed(verdict)
        self._notes.append(text)
        live.say(text)

    def _slow(self, stragglers: tuple[Straggler, ...], ranks: list[int]) -> None:
        """From the watcher: the job goes on, and could go on faster."""
        live.say(live.slowed(sentence(stragglers, ranks)))

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
            earlier = {attempt: v for attempt, v in self._verdicts.items() if attempt != job.attempt}
        bad = self._non_finites.get(job.attempt) or self._found_at_the_end()
        if job.finished_well() and not self.stopped_for_hang and self.interrupted_by is None:
            verdict = bad or _good(job)
        elif verdict is None:
            verdict = _good(job) if job.finished_well() else _undiagnosed(job)
        notes = [f"attempt {attempt} had ended: {past.headline}" for attempt, past in sorted(earlier.items())]
        if bad is not None and verdict.outcome != "nan":
            notes.append(f"before that, {bad.headline}")
        stragglers = self._stragglers()
        if stragglers and verdict.outcome in ("ok", "nan", "interrupted"):
            notes.append(sentence(stragglers, [process.rank for process in job.ranks]))
        if verdict.outcome == "ok":
            notes += self._unused_losses()
        return replace(
            verdict,
            stragglers=stragglers,
            exit_codes=codes,
            ended_at=time.time(),
            started_at=job.started_at,
            world_size=job.world_size,
            notes=(*notes, *dict.fromkeys(self._notes), *job.problems, *job.pump.problems),
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
            f"rank {rank} called backward on {beat.bad_losses} loss{'' if beat.bad_losses == 1 else 'es'} that "
            "were not finite; no optimizer applied them"
            for rank, beat in sorted(self._heartbeats().items())
            if beat.bad_losses and not beat.non_finite
        ][:3]

    def _found_at_the_end(self) -> Verdict | None:
        """A job may have ended before the watcher looked."""
        if not self._job.finished_well() or not any(beat.non_finite for beat in self._heartbeats().values()):
            return None
        evidence = self._job.collect("end")
        verdict = diagnose(evidence)
        if verdict.outcome != "nan":
            return None
        verdict = self._saved(verdict, evidence, f"evidence/attempt_{evidence.attempt}_non_finite")
        self._non_finites[evidence.attempt] = verdict
        return verdict


def _interruption(verdict: Verdict, evidence: Evidence, number: int | None) -> Verdict:
    """A person or the scheduler stopped the job. What it was stuck in, if it was, is kept as the alternative."""
    by = signal.Signals(number).name if number is not None else "a signal"
    seen = "" if verdict.cause is None else f" At that moment {verdict.headline}"
    alternatives = () if verdict.cause is None else (Alternative(verdict.cause, verdict.certainty, verdict.headline),)
    return replace(
        verdict,
        outcome="interrupted",
        cause=None,
        culprits=(),
        headline=f"the job was stopped by {by}.{seen}",
        alternatives=alternatives,
        exit_codes=exit_codes(evidence),
    )


def _good(job: Job) -> Verdict:
    return Verdict(
        schema=1,
        outcome="ok",
        cause=None,
        certainty="proven",
        culprits=(),
        victims=(),
        headline=f"all {job.world_size} ranks ended well.",
        because=(),
        fix=(),
        world_size=job.world_size,
    )


def _undiagnosed(job: Job) -> Verdict:
    """The job ended badly and no evidence could be read: what the exit codes say, and no more."""
    failed = sorted(job.failed(), key=lambda process: process.exit.at if process.exit is not None else 0.0)
    first = failed[0] if failed else None
    code = first.exit.code if first is not None and first.exit is not None else None
    return Verdict(
        schema=1,
        outcome="crash",
        cause="exit-code",
        certainty="possible",
        culprits=(),
        victims=(),
        headline=f"rank {first.rank} ended first, with code {code}."
        if first is not None
        else "the ranks were stopped.",
        because=("the evidence could not be read; only exit codes are known",),
        fix=("look at the output of that rank in the run's folder",),
        world_size=job.world_size,
    )


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(data)
    temporary.replace(path)


def own_exit_code(
    job: Job,
    verdict: Verdict,
    *,
    stopped_for_hang: bool,
    interrupted_by: int | None,
    stopped_for_nan: bool = False,
) -> int:
    """The exit code of the run: the culprit's own wherever it has one."""
    if job.finished_well():
        return 0
    if stopped_for_hang:
        return 75
    if stopped_for_nan:
        return 76
    if interrupted_by is not None and verdict.outcome == "interrupted":
        return 128 + interrupted_by
    guilty = {culprit.rank for culprit in verdict.culprits}
    failed = sorted(
        job.failed(), key=lambda process: (process.rank not in guilty, process.exit.at if process.exit else 0)
    )
    for process in failed:
        code = process.exit.code if process.exit is not None else 0
        if code:
            return code if code > 0 else 128 - code
    print("rankscope: no rank ended with a code of its own", file=sys.stderr)
    return 1
