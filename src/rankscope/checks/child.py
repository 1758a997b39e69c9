"""Steps that need torch run in processes of their own: what hangs or eats memory there is stopped from here."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankscope.evidence.procfs import pulse

_POLL_S = 0.05
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Ended:
    code: int | None
    """None where it was stopped at a limit."""
    out: str
    err: str
    seconds: float
    peak_bytes: int
    over: str | None = None
    """`time` or `memory`: the limit at which it was stopped."""

    @property
    def last_words(self) -> str:
        """The line that says most about a failure: the last one of its errors."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


class Child:
    """A Python process with its output in files, so that nobody has to read it while it runs."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str] | None = None) -> None:
        self._out = tempfile.TemporaryFile()  # noqa: SIM115  closed in finish
        self._err = tempfile.TemporaryFile()  # noqa: SIM115  closed in finish
        self._begun = time.monotonic()
        self.peak_bytes = 0
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **_own_path(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
            preexec_fn=_die_with_the_check,  # noqa: PLW1509  one call into the kernel; a killed check stops nobody
        )

    def poll(self) -> int | None:
        try:
            self.peak_bytes = max(self.peak_bytes, pulse(self.process.pid).rss_bytes)
        except (ProcessLookupError, OSError):
            return self.process.poll()  # it is ending
        return self.process.poll()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def finish(self, over: str | None = None) -> Ended:
        """Ends what is left of it, whoever it started, and reads what it said."""
        seconds = self.seconds
        code = self.process.poll()
        with suppress(ProcessLookupError):  # all of it has ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        out, err = _text(self._out), _text(self._err)
        self._out.close()
        self._err.close()
        return Ended(code if over is None else None, out, err, seconds, self.peak_bytes, over)


def run_child(
    arguments: list[str],
    *,
    limit_s: float,
    limit_bytes: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Runs `python ARGUMENTS` to its end, or to the limit of time or memory."""
    child = Child(arguments, environment)
    over = None
    try:
        while child.poll() is None and over is None:
            if child.seconds > limit_s:
                over = "time"
            elif limit_bytes is not None and child.peak_bytes > limit_bytes:
                over = "memory"
            else:
                time.sleep(_POLL_S)
    except BaseException:
        child.finish()
        raise
    return child.finish(over)


def _die_with_the_check() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


def _own_path() -> dict[str, str]:
    """The child finds this very rankscope, also where it is not installed."""
    source = str(Path(__file__).resolve().parents[2])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys([source, *paths]))}


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
