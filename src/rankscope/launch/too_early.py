"""A signal after the run's folder is made and before the ranks are: the folder gets its verdict all the same."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from msgspec.structs import replace

from rankscope.diagnosis.codec import verdict_to_json
from rankscope.launch.entry import TOO_EARLY
from rankscope.launch.last_verdicts import stopped_unseen
from rankscope.launch.verdict_file import VerdictFile
from rankscope.report import live
from rankscope.report.conclude import pronounce

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def leave_with_verdict(folder: Path, lang: str) -> None:
    """On a signal, until torch's agent and ours take the signals over."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        try:
            if not (folder / "verdict.json").exists():  # the launch may have failed by itself, and said so
                verdict = replace(pronounce(stopped_unseen(0, number), lang), ended_at=time.time())
                file = VerdictFile(folder, live.say)
                file.write(verdict_to_json(verdict))
                file.release()
                live.leave_screen()
                live.say(f"{signal.Signals(number).name}: {TOO_EARLY}")
        finally:
            os._exit(128 + number)

    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, leave)


def leave_at_once() -> None:
    """Where other nodes are waited for: that is C++, which no handler of Python's gets a word in. Ctrl-C has one all
    the same, as ever."""
    for number in _ENDING[1:]:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
