"""The launcher is woken by a rank's end, not by asking for it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from rankscope.launch.departures import Departures

LONG_S = 60.0


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def waited(departures: Departures, seconds: float) -> float:
    begin = time.monotonic()
    departures.wait(seconds)
    return time.monotonic() - begin


def test_end_of_a_process_is_told_at_once_and_only_once(sleeper: subprocess.Popen[bytes]) -> None:
    departures = Departures()
    departures.expect([sleeper.pid])
    assert waited(departures, 0.05) >= 0.04
    threading.Timer(0.2, sleeper.kill).start()
    assert waited(departures, LONG_S) < LONG_S / 2
    assert sleeper.wait() != 0
    assert waited(departures, 0.05) >= 0.04


def test_anybody_may_wake_it(sleeper: subprocess.Popen[bytes]) -> None:
    departures = Departures()
    departures.expect([sleeper.pid])
    threading.Timer(0.1, departures.wake).start()
    assert waited(departures, LONG_S) < LONG_S / 2
    assert waited(departures, 0.05) >= 0.04


def test_processes_of_an_earlier_attempt_are_forgotten(sleeper: subprocess.Popen[bytes]) -> None:
    departures = Departures()
    with subprocess.Popen([sys.executable, "-c", ""]) as earlier:
        departures.expect([earlier.pid])
        departures.expect([sleeper.pid])
        earlier.wait()
    assert waited(departures, 0.05) >= 0.04


def test_without_word_from_the_kernel_nothing_is_waited_for(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("os.pidfd_open", refused)
    departures = Departures()
    departures.expect([sleeper.pid])
    assert waited(departures, LONG_S) < LONG_S / 2
