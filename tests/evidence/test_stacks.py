"""Stacks of real processes, and of the dumps that faulthandler leaves."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankscope.evidence import stacks
from rankscope.evidence.model import StackSample
from rankscope.evidence.procfs import pulse
from rankscope.evidence.stacks import (
    parse_faulthandler,
    parse_py_spy,
    sample_stacks,
    stack_of_fatal_error,
)

PROGRAM = """
import faulthandler, os, signal, sys, threading, time
faulthandler.register(signal.SIGUSR1, all_threads=True)
ready = threading.Event()
def feed():
    ready.set()
    time.sleep(60)
def push_metrics():
    os.write(1, b"!")
    time.sleep(60)
threading.Thread(target=feed, name="feeder", daemon=True).start()
ready.wait()
push_metrics()
"""

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(code: str) -> subprocess.Popen[bytes]:
        (tmp_path / "train.py").write_text(code)
        # A relative name, as people write it.
        process = subprocess.Popen(
            [sys.executable, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.read(1) == b"!"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def sampled(pid: int, *, native: bool = False) -> StackSample:
    """Retries while the program is between its sign and its sleep."""
    deadline = time.monotonic() + 10
    while True:
        sample = sample_stacks([pid], native=native)[pid]
        if isinstance(sample, StackSample) or time.monotonic() > deadline:
            assert isinstance(sample, StackSample), sample
            return sample


def test_sees_both_threads_and_the_users_lines(start: Start, tmp_path: Path) -> None:
    process = start(PROGRAM)
    sample = sampled(process.pid)
    assert sample.source == "py-spy"
    (main,) = [thread for thread in sample.threads if thread.main]
    (feeder,) = [thread for thread in sample.threads if thread.name == "feeder"]
    assert main.tid == process.pid
    assert [frame.function for frame in main.frames] == ["push_metrics", "<module>"]
    assert main.frames[0].file == str(tmp_path / "train.py")
    assert main.frames[0].line == 10
    assert main.frames[0].user
    assert [frame.user for frame in feeder.frames] == [True, False, False, False]


def test_sees_a_stopped_process(start: Start) -> None:
    process = start(PROGRAM)
    os.kill(process.pid, signal.SIGSTOP)
    main = next(thread for thread in sampled(process.pid).threads if thread.main)
    assert main.frames[0].function == "push_metrics"


def test_native_frames_are_marked_and_are_never_the_users(start: Start) -> None:
    process = start(PROGRAM)
    sample = sample_stacks([process.pid], native=True)[process.pid]
    if isinstance(sample, str):
        pytest.skip(f"native stacks are not permitted here: {sample}")
    assert sample.source == "py-spy-native"
    main = next(thread for thread in sample.threads if thread.main)
    native = [frame for frame in main.frames if frame.native]
    assert native
    assert not any(frame.user for frame in native)
    assert any(frame.function == "push_metrics" and not frame.native for frame in main.frames)


def test_says_why_there_is_no_stack() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    foreign = subprocess.Popen(["sleep", "60"])
    try:
        reasons = sample_stacks([gone.pid, foreign.pid])
    finally:
        foreign.kill()
        foreign.wait()
    assert reasons[gone.pid] == f"process {gone.pid} is gone"
    assert isinstance(reasons[foreign.pid], str)
    assert "py-spy" in str(reasons[foreign.pid])
    assert "backtrace" not in str(reasons[foreign.pid]).lower()


def test_a_py_spy_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = tmp_path / "py-spy"
    stuck.write_text("#!/bin/sh\nexec sleep 60\n")
    stuck.chmod(0o755)
    monkeypatch.setattr(stacks, "find_py_spy", lambda: str(stuck))
    began = time.monotonic()
    assert "no answer" in str(sample_stacks([os.getpid()], timeout_s=0.1)[os.getpid()])
    assert time.monotonic() - began < 5


def test_a_process_left_stopped_by_a_killed_py_spy_goes_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(PROGRAM)
    stuck = tmp_path / "py-spy"
    stuck.write_text(f"#!/bin/sh\nkill -STOP {process.pid}\nexec sleep 60\n")
    stuck.chmod(0o755)
    monkeypatch.setattr(stacks, "find_py_spy", lambda: str(stuck))
    assert "no answer" in str(sample_stacks([process.pid], native=True, timeout_s=0.2)[process.pid])
    assert pulse(process.pid).state == "S"


def test_a_torn_answer_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flaky = tmp_path / "py-spy"
    thread = '{"os_thread_id": 1, "thread_name": "m", "active": false, "owns_gil": false, "frames": []}'
    flaky.write_text(f"#!/bin/sh\n[ -e {tmp_path}/again ] && echo '[{thread}]'\ntouch {tmp_path}/again\n")
    flaky.chmod(0o755)
    monkeypatch.setattr(stacks, "find_py_spy", lambda: str(flaky))
    assert isinstance(sample_stacks([os.getpid()])[os.getpid()], StackSample)


def test_py_spy_of_a_target_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "py-spy"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: "/nowhere")
    assert stacks.find_py_spy() == str(program)


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'[{"frames": []}]', b"null", b'[{"os_thread_id": "x"}]'])
def test_broken_answers_are_value_errors(data: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        parse_py_spy(data, 1, None)


def test_reads_a_real_dump_and_takes_the_last_of_several(start: Start) -> None:
    process = start(PROGRAM)
    assert process.stderr is not None
    text = ""
    for count in (1, 2):
        while text.count("in <module>") < count:
            os.kill(process.pid, signal.SIGUSR1)  # one that comes while a dump is written is lost
            while select.select([process.stderr], [], [], 0.5)[0]:
                data = os.read(process.stderr.fileno(), 1 << 16)
                assert data, "the program has ended"
                text += data.decode()
    feeder, main = parse_faulthandler(text)
    assert (feeder.main, main.main) == (False, True)
    assert [frame.function for frame in main.frames] == ["push_metrics", "<module>"]
    assert feeder.frames[0].function == "feed"


def test_reads_a_real_crash(start: Start) -> None:
    code = (
        "import faulthandler, os, threading, time\n"
        "faulthandler.enable()\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "def kernel():\n    os.write(1, b'!')\n    os.abort()\n"
        "kernel()\n"
    )
    process = start(code)
    text = process.communicate()[1].decode()
    frames = stack_of_fatal_error(text)
    assert [(frame.function, frame.line, frame.user) for frame in frames] == [
        ("kernel", 6, True),
        ("<module>", 7, True),
    ]


CRASH = """\
some output
Fatal Python error: Segmentation fault

Thread 0x00007f1 [pin_memory] (most recent call first):
  File "/usr/lib/python3.13/threading.py", line 359 in wait
  ...

Current thread 0x00007f2 [loader] (most recent call first):
  Garbage-collecting
  File "/home/me/data.py", line ??? in decode
  File "/home/me/data.py", line 12 in __getitem__

Thread 0x00007f3 [python3] (most recent call first):
  File "/home/me/train.py", line 3 in <module>

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3", at _Py_DumpStack+0x2e [0x5]

Extension modules: numpy.core (total: 1)
"""


def test_reads_names_and_finds_the_thread_that_crashed() -> None:
    threads = parse_faulthandler(CRASH)
    assert [(thread.name, thread.main, thread.active) for thread in threads] == [
        ("pin_memory", False, False),
        ("loader", False, True),
        ("python3", True, False),
    ]
    assert [(frame.function, frame.line) for frame in stack_of_fatal_error(CRASH)] == [
        ("decode", 0),
        ("__getitem__", 12),
    ]


def test_a_dump_cut_after_a_hundred_threads_has_no_main_thread() -> None:
    text = 'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n...\n'
    assert [thread.main for thread in parse_faulthandler(text)] == [False]


def test_a_dump_of_one_thread_only() -> None:
    text = 'Fatal Python error: Aborted\n\nStack (most recent call first):\n  File "/me/a.py", line 1 in f\n'
    (thread,) = parse_faulthandler(text)
    assert thread.main
    assert stack_of_fatal_error(text) == thread.frames


@pytest.mark.parametrize("text", ["", "hello\n", 'File "a.py", line 1 in f', "Fatal Python error: x\n"])
def test_text_without_a_dump_gives_nothing(text: str) -> None:
    assert parse_faulthandler(text) == ()
    assert stack_of_fatal_error(text) == ()


def test_a_crash_outside_python_has_no_stack() -> None:
    text = "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  <no Python frame>\n"
    assert stack_of_fatal_error(text) == ()
