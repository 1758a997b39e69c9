"""Runs one case under rankscope, and watches it from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from expectation import Case, Kill
from judge import GotVerdict, Observation
from started import MARK, first_worker, kill_all, leftovers, marked

RANKSCOPE = (sys.executable, "-m", "rankscope")
ANNOUNCEMENT = re.compile(r"rankscope: (HANG|CRASH|SLOW|NAN|CORRUPT|INTERRUPTED)\b")
LEFTOVER_GRACE_S = 5.0


def run_case(
    case: Case,
    folder: Path,
    command: Sequence[str] = RANKSCOPE,
    *,
    patience: float = 1.0,
    on_fault: Callable[[], None] = lambda: None,
) -> Observation:
    """Runs the case; everything it writes goes under `folder`, its whole output to `folder/output.log`.

    It may take `patience` times its own limit. `on_fault` is called, from another thread, when the fault begins.
    Whatever the run started is gone when this returns.
    """
    run_dir, scratch = folder / "run", folder / "scratch"
    scratch.mkdir(parents=True)
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        _command_line(case, run_dir, scratch, command),
        cwd=case.folder,
        env={**os.environ, **_looks(case, folder), **case.expect.env, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with open(folder / "output.log", "w") as log:
            watch = _Watch(case, run_dir, log, on_fault)
            readers = watch.start(process)
            exit_code = _wait(process, patience * case.expect.timeout_s)
            remaining = leftovers(mark, grace_s=LEFTOVER_GRACE_S if exit_code is not None else 0.0)
            kill_all(remaining)
            for reader in readers:
                reader.join(timeout=5)
    finally:
        kill_all(marked(mark))
        process.wait()
        leftovers(mark, grace_s=LEFTOVER_GRACE_S)
    verdict, missing = _read_verdict(run_dir)
    return Observation(
        exit_code=exit_code,
        verdict=verdict,
        verdict_missing=missing,
        announcements=tuple(watch.announcements),
        fault_at=watch.fault_at,
        announced_at=watch.announced_at,
        leftovers=tuple(f"{pid} {text}" for pid, text in remaining.items()) if exit_code is not None else (),
        trouble=tuple(watch.trouble),
    )


def _looks(case: Case, folder: Path) -> dict[str, str]:
    """For `recorder.py`; rankscope itself does not know these."""
    every = {"ZOO_LOOK_EVERY": "3"} if case.expect.healthy else {}
    return {"ZOO_LOOKS": str(folder / "looks"), **every}


def _command_line(case: Case, run_dir: Path, scratch: Path, command: Sequence[str]) -> list[str]:
    expect = case.expect
    launch = [*command, "run", "--standalone", "--run-dir", str(run_dir), "--nproc-per-node", str(expect.nproc)]
    arguments = [argument.replace("{tmp}", str(scratch)) for argument in expect.args]
    return [*launch, *expect.options, "train.py", *arguments]


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    return code if code >= 0 else 128 - code


def _read_verdict(run_dir: Path) -> tuple[GotVerdict | None, str]:
    try:
        return msgspec.json.decode((run_dir / "verdict.json").read_bytes(), type=GotVerdict), ""
    except (OSError, msgspec.MsgspecError) as error:
        return None, str(error)


class _Watch:
    """Reads both output streams line by line, notes when things were said, and sends the case's signal."""

    def __init__(self, case: Case, run_dir: Path, log: IO[str], on_fault: Callable[[], None]) -> None:
        self.announcements: list[str] = []
        self.fault_at: float | None = None
        self.announced_at: float | None = None
        self.trouble: list[str] = []
        self._case = case
        self._run_dir = run_dir
        self._log = log
        self._on_fault = on_fault
        self._lock = threading.Lock()
        self._signal_due = case.expect.kill is not None

    def start(self, process: subprocess.Popen[bytes]) -> list[threading.Thread]:
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            threading.Thread(target=self._read, args=(process.stdout, False), daemon=True),
            threading.Thread(target=self._read, args=(process.stderr, True), daemon=True),
        ]
        for reader in readers:
            reader.start()
        return readers

    def _read(self, stream: IO[bytes], is_stderr: bool) -> None:
        with stream:
            for raw in stream:
                now = time.monotonic()
                with self._lock:
                    self._line(raw.decode(errors="replace").rstrip("\n"), now, is_stderr)

    def _line(self, line: str, now: float, is_stderr: bool) -> None:
        if not self._log.closed:
            print(line, file=self._log, flush=True)
        if is_stderr and ANNOUNCEMENT.search(line):
            self.announcements.append(line)
            self.announced_at = self.announced_at or now
            return
        if self.fault_at is None and self._case.expect.fault_marker in line:
            self.fault_at = now
            self._on_fault()
        kill = self._case.expect.kill
        if self._signal_due and kill is not None and kill.after in line:
            self._signal_due = False
            self._send(kill)
            self.fault_at = time.monotonic()
            self._on_fault()

    def _send(self, kill: Kill) -> None:
        try:
            ranks = json.loads((self._run_dir / "ranks.json").read_bytes())
            pid = int(ranks[str(kill.rank)])
            if kill.process == "dataloader-worker":
                pid = first_worker(pid)
            os.kill(pid, signal.Signals[kill.signal])
        except (OSError, ValueError, LookupError) as error:
            self.trouble.append(f"could not send {kill.signal} to rank {kill.rank}: {error!r}")
