"""Runs a case under another tool than rankscope: torchrun, torchrun with torchfrtrace, NVIDIA's ft_launcher."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from expectation import Case, Kill
from peer_output import (
    Finding,
    Report,
    TimedLine,
    first_of_each_group,
    read_ft_launcher,
    read_torchfrtrace,
    read_torchrun,
)
from started import MARK, first_worker, kill_all, leftovers, marked, rank_process

INJECTED = Path(__file__).resolve().parent / "injected"
FT_LAUNCHER_FOLDER = Path(__file__).resolve().parent.parent / ".peers"
FT_LAUNCHER_MODULE = "nvidia_resiliency_ext.fault_tolerance.launcher"
FT_INITIAL_S, FT_HEARTBEAT_S, FT_CHECK_S = 30, 10, 1

LIMIT_S = 40.0
"""How long after the fault a tool has to say something."""
DUMPS_AT_S = {"first": 10.0, "second": 15.0}
"""When torchfrtrace is given dumps, in seconds after the fault."""
ANALYSIS_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class PeerRun:
    """What was seen of one case under one tool."""

    report: Report
    exit_code: int | None
    """None: it was still running at the limit, and was ended here."""
    fault_at: float | None
    trouble: tuple[str, ...] = ()


@dataclass(slots=True)
class _Job:
    """A tool's run of a case, while it lasts."""

    case: Case
    process: subprocess.Popen[bytes]
    mark: str
    log: IO[str]
    lines: list[TimedLine] = field(default_factory=list)
    fault_at: float | None = None
    trouble: list[str] = field(default_factory=list)
    signal_sent: bool = False
    over: bool = False
    """What comes from here on is the job being ended by the zoo."""


def run_torchrun(case: Case, folder: Path, limit_s: float = LIMIT_S) -> PeerRun:
    command = [sys.executable, "-m", "torch.distributed.run"]
    job, exit_code = _run(case, folder, command, {}, limit_s)
    return PeerRun(read_torchrun(job.lines, str(case.folder)), exit_code, job.fault_at, tuple(job.trouble))


def run_ft_launcher(case: Case, folder: Path, limit_s: float = LIMIT_S) -> PeerRun:
    """Raises FileNotFoundError, with what to do, where ft_launcher is not installed."""
    if not (FT_LAUNCHER_FOLDER / "nvidia_resiliency_ext").is_dir():
        raise FileNotFoundError(
            "ft_launcher is not installed; "
            f"pip install --no-deps --target {FT_LAUNCHER_FOLDER} nvidia-resiliency-ext==0.4.1 defusedxml"
        )
    timeouts = ("--ft-initial-rank-heartbeat-timeout", FT_INITIAL_S, "--ft-rank-heartbeat-timeout", FT_HEARTBEAT_S)
    checks = ("--ft-workload-check-interval", FT_CHECK_S, "--ft-enable-nic-monitor", "false", "--max-restarts", 0)
    command = [sys.executable, "-m", FT_LAUNCHER_MODULE, *(str(option) for option in (*timeouts, *checks))]
    environment = {"PYTHONPATH": _python_path(INJECTED / "heartbeats", FT_LAUNCHER_FOLDER)}
    job, exit_code = _run(case, folder, command, environment, limit_s)
    return PeerRun(read_ft_launcher(job.lines, str(case.folder)), exit_code, job.fault_at, tuple(job.trouble))


def run_torchfrtrace(case: Case, folder: Path, limit_s: float = LIMIT_S) -> PeerRun:
    """torchrun; where the job goes on, its dumps are read twice, and only what is found both times counts."""
    dumps = folder / "dumps"
    dumps.mkdir(parents=True)
    command = [sys.executable, str(INJECTED / "torchrun_with_dumps.py")]
    environment = {"PYTHONPATH": _python_path(INJECTED / "dumps"), "FLIGHT_DUMPS": str(dumps)}

    def ask_for_dumps(seconds_since_fault: float) -> None:
        for name, after_s in DUMPS_AT_S.items():
            if seconds_since_fault >= after_s:
                (dumps / f"request_{name}").touch()

    job, exit_code = _run(case, folder, command, environment, limit_s, ask_for_dumps)
    launcher = read_torchrun(job.lines, str(case.folder))
    ended_at = time.monotonic()
    findings = _findings(case, folder, dumps, job.trouble)
    if not findings:
        return PeerRun(launcher, exit_code, job.fault_at, tuple(job.trouble))
    asked_at = ended_at if not (dumps / "second").is_dir() else (job.fault_at or ended_at) + DUMPS_AT_S["first"]
    report = Report(
        at=min(asked_at, launcher.at or math.inf),
        ranks=_named(case, findings, launcher),
        shown=(*launcher.shown, *(shown for finding in findings for shown in finding.shown)),
        said=findings[0].said,
    )
    return PeerRun(report, exit_code, job.fault_at, tuple(job.trouble))


PEERS: dict[str, Callable[[Case, Path], PeerRun]] = {
    "torchrun": run_torchrun,
    "torchfrtrace": run_torchfrtrace,
    "ft_launcher": run_ft_launcher,
}


def _run(
    case: Case,
    folder: Path,
    command: Sequence[str],
    environment: dict[str, str],
    limit_s: float,
    meanwhile: Callable[[float], None] = lambda _: None,
) -> tuple[_Job, int | None]:
    """Runs the case until it ends or until `limit_s` after its fault; whatever it started is gone afterwards.

    `meanwhile` is called many times a second with the seconds since the fault.
    """
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    mark = uuid.uuid4().hex
    arguments = [argument.replace("{tmp}", str(scratch)) for argument in case.expect.args]
    options = ["--standalone", "--nproc-per-node", str(case.expect.nproc)]
    process = subprocess.Popen(
        [*command, *options, "train.py", *arguments],
        cwd=case.folder,
        env={**os.environ, **environment, **case.expect.env, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with open(folder / "output.log", "w") as log:
        job = _Job(case, process, mark, log)
        reader = threading.Thread(target=_read, args=(job,), daemon=True)
        reader.start()
        try:
            exit_code = _wait(job, limit_s, meanwhile)
            if exit_code is not None:
                reader.join(timeout=5)
        finally:
            job.over = True
            kill_all(marked(mark))
            process.wait()
            leftovers(mark, grace_s=5.0)
            reader.join(timeout=5)
    return job, exit_code


def _wait(job: _Job, limit_s: float, meanwhile: Callable[[float], None]) -> int | None:
    patience_s = job.case.expect.timeout_s + 180.0  # a program may take long to get to its fault on a busy machine
    started = time.monotonic()
    while True:
        try:
            return job.process.wait(0.1)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        if job.fault_at is not None:
            meanwhile(now - job.fault_at)
            if not job.case.expect.healthy and now - job.fault_at > limit_s:
                return None
        if now - started > patience_s:
            job.trouble.append(f"did not end within {patience_s:.0f} s")
            return None


def _read(job: _Job) -> None:
    assert job.process.stdout is not None
    with job.process.stdout as stream:
        for raw in stream:
            now = time.monotonic()
            text = raw.decode(errors="replace").rstrip("\n")
            if job.over:
                continue
            job.lines.append(TimedLine(now, text))
            print(text, file=job.log, flush=True)
            if job.fault_at is None and job.case.expect.fault_marker in text:
                job.fault_at = now
            kill = job.case.expect.kill
            if kill is not None and not job.signal_sent and kill.after in text:
                job.signal_sent = True
                _send(job, kill)
                job.fault_at = time.monotonic()


def _send(job: _Job, kill: Kill) -> None:
    try:
        pid = rank_process(job.mark, kill.rank)
        if kill.process == "dataloader-worker":
            pid = first_worker(pid)
        os.kill(pid, signal.Signals[kill.signal])
    except (OSError, LookupError) as error:
        job.trouble.append(f"could not send {kill.signal} to rank {kill.rank}: {error!r}")


def _findings(case: Case, folder: Path, dumps: Path, trouble: list[str]) -> tuple[Finding, ...]:
    """What torchfrtrace finds: twice the same in a job that goes on, else at its end."""
    if (dumps / "second").is_dir():
        first = _analyse(case, folder, dumps / "first", trouble)
        second = _analyse(case, folder, dumps / "second", trouble) if first else ()
        again = {(finding.group, finding.sequence, finding.ranks) for finding in second}
        return tuple(finding for finding in first if (finding.group, finding.sequence, finding.ranks) in again)
    if (dumps / "end").is_dir():
        return _analyse(case, folder, dumps / "end", trouble)
    return ()


def _analyse(case: Case, folder: Path, dumps: Path, trouble: list[str]) -> tuple[Finding, ...]:
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(dumps)]
    command += ["--prefix", "rank_", "--allow-incomplete-ranks"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=ANALYSIS_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        trouble.append(f"torchfrtrace did not end within {ANALYSIS_LIMIT_S:.0f} s")
        return ()
    output = ended.stdout + ended.stderr
    (folder / f"torchfrtrace-{dumps.name}.log").write_text(output)
    if ended.returncode != 0:
        trouble.append(f"torchfrtrace failed: {output.strip().splitlines()[-1] if output.strip() else 'no output'}")
    return read_torchfrtrace(output, str(case.folder))


def _named(case: Case, findings: Sequence[Finding], launcher: Report) -> frozenset[int]:
    """Whom the two tools give as the cause; of several answers the right one, where there is one."""
    answers = [*(finding.ranks for finding in first_of_each_group(findings)), launcher.ranks]
    right = [ranks for ranks in answers if ranks and ranks <= case.expect.ranks]
    return next((ranks for ranks in (*right, *answers) if ranks), frozenset())


def _python_path(*folders: Path) -> str:
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*(str(folder) for folder in folders), *([inherited] if inherited else [])])
