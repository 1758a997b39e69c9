"""Sends notices beside the job: nobody waits for a receiver, except for a moment at the very end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankscope import __version__
from rankscope.diagnosis.verdict import Verdict
from rankscope.mask import mask_text
from rankscope.report.live import say
from rankscope.report.notices.bodies import Event, Notice, body
from rankscope.report.notices.otlp import headers_of
from rankscope.report.notices.places import leave_records
from rankscope.report.notices.targets import Target
from rankscope.report.notices.trackers import leave_in_trackers
from rankscope.report.words.languages import language

LIMIT_S = 5.0
"""For one notice, from the moment that it is sent."""
_MARGIN_S = 0.3
_SILENT = f"no answer within {LIMIT_S:g} s"


class Notifier:
    """`environment` is what commands are given: that of the user, without what the ranks get."""

    def __init__(self, targets: Sequence[Target], run: str, environment: Mapping[str, str]) -> None:
        self._targets = targets
        self._run = run
        self._environment = dict(environment)
        self._sent: list[tuple[Target, threading.Thread, float]] = []
        self._problems: dict[int, str] = {}
        self._lang = "en"

    def tell(self, verdict: Verdict, event: Event) -> None:
        """At once; how it went is told by `finish`."""
        self._lang = verdict.language
        notice = Notice(verdict, event, socket.gethostname(), self._run)
        for target in self._targets:
            number = len(self._sent)
            thread = threading.Thread(
                target=self._send, args=(number, target, notice), name="rankscope-notify", daemon=True
            )
            self._sent.append((target, thread, time.monotonic()))
            thread.start()

    def finish(self) -> None:
        """Waits for what was sent last, no longer than its limit, and says what did not arrive."""
        for number, (target, thread, began) in enumerate(self._sent):
            thread.join(max(0.0, began + LIMIT_S + _MARGIN_S - time.monotonic()))
            problem = _SILENT if thread.is_alive() else self._problems.get(number)
            if problem is not None:
                stands = language(self._lang).label("the verdict stands")
                say(f"--notify {target.name}: {mask_text(problem)}; {stands}")

    def _send(self, number: int, target: Target, notice: Notice) -> None:
        try:
            problem = (
                self._run_command(target, notice)
                if target.shape == "command"
                else _post(target, notice, self._environment)
            )
        except Exception as error:  # noqa: BLE001  whatever it is, the job has nothing to do with it
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            self._problems[number] = problem

    def _run_command(self, target: Target, notice: Notice) -> str | None:
        """By the user's shell, with the verdict on its standard input. What it prints is not ours to show."""
        verdict = notice.verdict
        told = {
            "RANKSCOPE_EVENT": notice.event,
            "RANKSCOPE_RUN": notice.run,
            "RANKSCOPE_OUTCOME": verdict.outcome,
            "RANKSCOPE_CAUSE": verdict.cause or "",
            "RANKSCOPE_RETRY": verdict.retry,
            "RANKSCOPE_HOSTS": ",".join(sorted({each.host for each in verdict.culprits if each.host})),
            "RANKSCOPE_HEADLINE": mask_text(verdict.headline).replace("\0", ""),
        }
        with subprocess.Popen(
            ["/bin/sh", "-c", target.to],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**self._environment, **told},
            start_new_session=True,
        ) as process:
            try:
                _, said = process.communicate(body(notice, target.shape), timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"did not end within {LIMIT_S:g} s and was killed"
        if process.returncode == 0:
            return None
        last = said.decode(errors="replace").strip().splitlines()[-1:]
        return f"ended with code {process.returncode}{''.join(f' ({line[:200]})' for line in last)}"


def tell_the_end(verdict: Verdict, notifier: Notifier, environment: Mapping[str, str], pages: Path | None) -> None:
    """Everybody who was to be told, and the places where others look. `pages`: of the ranks, which say where they keep
    records of their own."""
    notifier.tell(verdict, "ended")
    leave_records(verdict, environment)
    if pages is not None:
        leave_in_trackers(verdict, pages, environment)
    notifier.finish()


def _post(target: Target, notice: Notice, environment: Mapping[str, str]) -> str | None:
    request = urllib.request.Request(
        target.to,
        data=body(notice, target.shape, environment),
        headers={
            **(headers_of(environment) if target.shape == "otlp" else {}),
            "Content-Type": "application/json",
            "User-Agent": f"rankscope/{__version__}",
            "X-Rankscope-Event": notice.event,
            "X-Rankscope-Host": _header(notice.host),
            "X-Rankscope-Run": _header(notice.run),
        },
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"answered {error.code} {error.reason}"
    except urllib.error.URLError as error:
        return _SILENT if isinstance(error.reason, TimeoutError) else f"{error.reason}"
    except TimeoutError:
        return _SILENT


def _header(text: str) -> str:
    return "".join(character if " " <= character <= "~" else "?" for character in text)
