"""How a process ended that is somebody else's child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import wait_until
from rankscope.evidence.model import Exit
from rankscope.evidence.pages import read_page
from rankscope.launch.job import RankProcess
from rankscope.launch.output import OutputPump
from rankscope.launch.watched.ends import Ended, Ends, code_by_page
from rankscope.launch.watched.job import WatchedJob
from rankscope.probe.page import EXCEPTION_OF_WORK, FINALIZING, WORK_FAILED, WORK_OVER, Page


@pytest.mark.parametrize(
    ("ending", "code"),
    [("sys.exit(3)", 3), ("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", -9), ("raise ValueError", 1), ("pass", 0)],
)
def test_end_of_a_grandchild_is_known(tmp_path: Path, ending: str, code: int) -> None:
    """Its parent waits for it at once, as launchers do."""
    go = tmp_path / "go"
    program = f"import os, sys, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n{ending}"
    parent = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stderr=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent, program], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        ends = Ends()
        ends.follow(pid, tmp_path / f"0-{pid}.page")
        assert ends.of(pid) is None
        go.touch()
        assert wait_until(lambda: ends.of(pid) is not None, 10.0)
        end = ends.of(pid)
    assert end is not None
    if not kernel_remembers() and end.code == -9:
        pytest.skip("this kernel forgets who was waited for, and there was no page")
    assert end.code == code


def kernel_remembers() -> bool:
    major, minor = (int(number) for number in os.uname().release.split(".")[:2])
    return (major, minor) >= (6, 15)


@pytest.mark.parametrize(
    ("note", "finalizing", "code"),
    [
        ("", True, 0),
        ("sys.exit(3)", True, 3),
        ("sys.exit(None)", True, 0),
        ("sys.exit('no data')", True, 1),
        ("sys.exit(3)", False, -9),  # it was caught, and the process killed
        ("os._exit(5)", False, 5),
        ("", False, -9),
    ],
)
def test_page_tells_what_the_kernel_has_forgotten(tmp_path: Path, note: str, finalizing: bool, code: int) -> None:
    page = Page(str(tmp_path / "0-1.page"), 0)
    if note:
        page.leaving(0, note)
    if finalizing:
        page.raise_flag(FINALIZING)
    assert code_by_page(tmp_path / "0-1.page") == code


def test_page_tells_of_an_exception_and_of_a_fatal_signal(tmp_path: Path) -> None:
    page = Page(str(tmp_path / "0-1.page"), 0)
    (tmp_path / "0-1.fatal").write_text("Fatal Python error: Segmentation fault\n\nCurrent thread")
    assert code_by_page(tmp_path / "0-1.page") == -signal.SIGSEGV
    page.exception("ValueError", "a bad batch", "MainThread", [("train.py", 3, "main")])
    page.raise_flag(FINALIZING)
    assert code_by_page(tmp_path / "0-1.page") == 1


@pytest.mark.parametrize(
    ("flags", "killed_by", "code"),
    [
        (WORK_OVER, signal.SIGTERM, 0),
        (WORK_OVER, signal.SIGKILL, 0),
        (WORK_OVER | WORK_FAILED, signal.SIGKILL, 1),
        (0, signal.SIGKILL, -signal.SIGKILL),  # in the middle of its work
        (WORK_OVER, signal.SIGSEGV, -signal.SIGSEGV),
    ],
)
def test_process_that_stays_after_its_work_ends_as_its_work_did(
    tmp_path: Path, flags: int, killed_by: int, code: int
) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        path = tmp_path / f"0-{child.pid}.page"
        Page(str(path), 0).raise_flag(flags)
        ends = Ends()
        ends.follow(child.pid, path)
        child.send_signal(killed_by)
        assert wait_until(lambda: ends.of(child.pid) is not None, 10.0)
        end = ends.of(child.pid)
    assert end is not None
    assert end.code == code


def test_work_that_failed_is_an_end_though_its_process_stays_unless_later_work_makes_it_good(tmp_path: Path) -> None:
    path = tmp_path / f"0-{os.getpid()}.page"
    page = Page(str(path), 0)
    ends = Ends()
    ends.follow(os.getpid(), path)
    page.exception("ValueError", "a bad batch", "MainThread", [("train.py", 3, "main")], entry=EXCEPTION_OF_WORK)
    page.raise_flag(WORK_FAILED)
    assert [each.source for each in read_page(path).exceptions] == ["hook"]
    page.lower_flag(WORK_FAILED)
    ends.look_for_failed_work()
    assert ends.of(os.getpid()) is None
    assert read_page(path).exceptions == ()
    page.raise_flag(WORK_FAILED)
    ends.look_for_failed_work()
    end = ends.of(os.getpid())
    assert end is not None
    assert end.code == 1


@pytest.mark.parametrize("raised", [True, False])
def test_rank_that_was_on_its_way_out_was_not_stopped_by_us(tmp_path: Path, raised: bool) -> None:
    path = tmp_path / "0-1.page"
    page = Page(str(path), 0)
    if raised:
        page.exception("ValueError", "a bad batch", "MainThread", [("train.py", 3, "main")])
    pump = OutputPump(sys.stdout.buffer, sys.stderr.buffer)
    job = WatchedJob(tmp_path, tmp_path, (), {}, pump, Told({1: Ended(1, time.time())}))
    job.started(0, 1, [RankProcess(0, 0, 1, time.time(), lambda: None, page=path)])
    job.stopping = True
    job.poll()
    pump.finish(1.0)
    [end] = [process.exit for process in job.ranks]
    assert end is not None
    assert end.by_launcher is not raised


class Told(Ends):
    """Ends that a test makes up."""

    def __init__(self, ends: dict[int, Ended]) -> None:
        self._made = ends

    def look_for_failed_work(self) -> None: ...

    def of(self, pid: int) -> Ended | None:
        return self._made.get(pid)


@pytest.mark.parametrize(
    ("ends", "stopped"),
    [
        ({1: (1, 10.0), 2: (-15, 10.1)}, {1: False, 2: True}),
        ({1: (1, 10.01), 2: (-15, 10.0)}, {1: False, 2: True}),  # seen in the wrong order, at the same moment
        ({1: (-9, 10.0), 2: (-15, 10.1)}, {1: False, 2: True}),
        ({1: (-9, 10.0), 2: (1, 10.01)}, {1: False, 2: False}),
        ({1: (-15, 10.0), 2: (1, 10.1)}, {1: False, 2: False}),
        ({1: (0, 10.0), 2: (-15, 30.0)}, {1: False, 2: False}),
        ({1: (-15, 10.0), 2: (1, 30.0)}, {1: False, 2: False}),
    ],
)
def test_who_is_ended_by_a_signal_after_a_failure_was_stopped_for_it(
    tmp_path: Path, ends: dict[int, tuple[int, float]], stopped: dict[int, bool]
) -> None:
    pump = OutputPump(sys.stdout.buffer, sys.stderr.buffer)
    told = Told({pid: Ended(code, at) for pid, (code, at) in ends.items()})
    job = WatchedJob(tmp_path, tmp_path, (), {}, pump, told)
    job.started(0, 2, [RankProcess(pid - 1, pid - 1, pid, time.time(), lambda: None) for pid in ends])
    job.poll()
    pump.finish(1.0)
    exits: dict[int, Exit | None] = {process.pid: process.exit for process in job.ranks}
    assert {pid: end.by_launcher for pid, end in exits.items() if end is not None} == stopped
