"""Signals, and how long ranks may take after one."""

from __future__ import annotations

import os
import signal
import time

import pytest

from conftest import Rankscope

pytestmark = pytest.mark.slow

SAVES = """
import os, signal, sys, time
rank = os.environ["RANK"]
def save(number, frame):
    print("saving", number, rank, flush=True)
    time.sleep(float(sys.argv[1]))
    print("saved", rank, flush=True)
    sys.exit(0)
for name in ("SIGTERM", "SIGINT"):
    signal.signal(getattr(signal, name), save)
signal.signal(signal.SIGUSR1, lambda number, frame: print("told", rank, flush=True))
print("ready", rank, flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_ranks_may_save_for_as_long_as_grace_says(rankscope: Rankscope, number: int, code: int) -> None:
    started = rankscope.start("--grace=20", rankscope.script(SAVES), 7)
    started.shows("ready 0", "ready 1")
    os.kill(started.process.pid, number)
    ended = started.wait(40.0)
    assert {b"R0:saved 0", b"R1:saved 1"} <= set(ended.out.splitlines())
    assert (ended.code, ended.verdict["outcome"]) == (code, "interrupted")  # though every rank ended with 0
    assert ended.verdict["exit_codes"] == {"0": 0, "1": 0}


def test_rank_that_takes_longer_than_grace_is_killed(rankscope: Rankscope) -> None:
    started = rankscope.start("--grace=1", rankscope.script(SAVES), 60)
    started.shows("ready 0", "ready 1")
    os.kill(started.process.pid, signal.SIGTERM)
    begin = time.monotonic()
    ended = started.wait(20.0)
    assert time.monotonic() - begin < 12.0
    assert b"saving 15" in ended.out
    assert b"saved" not in ended.out
    assert ended.code == 143


def test_sigusr1_reaches_the_ranks_and_ends_nothing(rankscope: Rankscope) -> None:
    started = rankscope.start("--grace=10", rankscope.script(SAVES), 0)
    started.shows("ready 0", "ready 1")
    os.kill(started.process.pid, signal.SIGUSR1)
    started.shows("told 0", "told 1", "SIGUSR1: passed on to 2 ranks")
    assert started.process.poll() is None
    os.kill(started.process.pid, signal.SIGTERM)
    assert started.wait(30.0).code == 143


def test_rank_that_does_not_handle_sigusr2_is_spared(rankscope: Rankscope) -> None:
    started = rankscope.start(rankscope.script(SAVES), 0)
    started.shows("ready 0", "ready 1")
    os.kill(started.process.pid, signal.SIGUSR2)
    started.shows("SIGUSR2: passed on to no rank; ranks 0, 1 would die of it and did not get it")
    os.kill(started.process.pid, signal.SIGUSR1)
    started.shows("told 0", "told 1")
    os.kill(started.process.pid, signal.SIGTERM)
    started.wait(30.0)


def test_sigusr1_ends_the_run_where_torchrun_is_told_so(rankscope: Rankscope) -> None:
    started = rankscope.start("--signals-to-handle=SIGTERM,SIGUSR1", rankscope.script(SAVES), 0)
    started.shows("ready 0", "ready 1")
    os.kill(started.process.pid, signal.SIGUSR1)
    # Torch sends the ranks the signal that it got; these go on, and are killed after the grace of torchrun.
    started.shows("told 0", "told 1")
    os.kill(started.process.pid, signal.SIGTERM)
    assert started.wait(20.0).code in (128 + signal.SIGUSR1, 128 + signal.SIGTERM)
