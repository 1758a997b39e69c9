"""Stacks that somebody took with py-spy, and torchrun's error files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.errors import EvidenceError
from rankscope.evidence.readers.error_file import read_error_file
from rankscope.evidence.readers.kinds import FileKind, kind_of
from rankscope.evidence.readers.py_spy_dump import read_py_spy_json, read_py_spy_text

TEXT = """\
Process 4121: /usr/bin/python3 -u train.py --local_rank 2
Python v3.11.7 (/usr/bin/python3.11)

Thread 4121 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3245)
    wrapper (torch/distributed/c10d_logger.py:83)
    train (train.py:61)
    <module> (train.py:88)
Thread 4130 (active+gil): "Thread-1"
    run (threading.py:982)
    pread64 (libc.so.6)
"""
THREAD: dict[str, Any] = {
    "pid": 4121,
    "thread_id": 1,
    "thread_name": "MainThread",
    "os_thread_id": 4121,
    "active": False,
    "owns_gil": False,
    "frames": [{"name": "train", "filename": "/me/train.py", "module": None, "short_filename": "train.py", "line": 61}],
}


def test_a_text_dump_tells_process_threads_and_whose_code_it_is() -> None:
    (process,) = read_py_spy_text(TEXT, 5.0)
    main, other = process.sample.threads
    assert (process.pid, process.rank) == (4121, 2)
    assert (main.main, other.main, other.owns_gil) == (True, False, True)
    assert [frame.user for frame in main.frames] == [False, False, True, True]
    assert main.frames[0].file.endswith("/torch/distributed/distributed_c10d.py")
    assert [frame.native for frame in other.frames] == [False, True]


def test_several_processes_in_one_file_are_told_apart() -> None:
    found = read_py_spy_text(TEXT + "\n" + TEXT.replace("4121", "4122").replace("rank 2", "rank 3"), 5.0)
    assert [(process.pid, process.rank) for process in found] == [(4121, 2), (4122, 3)]


def test_a_json_dump_is_read() -> None:
    (process,) = read_py_spy_json(json.dumps([THREAD]).encode(), 5.0)
    assert process.sample.threads[0].main
    assert process.sample.threads[0].frames[0].user


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (TEXT, FileKind.STACKS_TEXT),
        (json.dumps([THREAD], indent=2), FileKind.STACKS_JSON),
        ('{"version": "2.10", "pg_config": {}, "entries": []}', FileKind.FLIGHT),
        ('{"message": {"message": "ValueError: x", "extraInfo": {}}}', FileKind.ERROR),
        ('{"schema":1,"collected_at":1.0}', FileKind.EVIDENCE),
        ('{"schema": 1, "outcome": "ok"}', FileKind.NOT_EVIDENCE),
        ('{"level": "info", "msg": "step"}\n{"level": "info"}', FileKind.LOG),
        ("[rank0]: hello", FileKind.LOG),
        ("[INFO] hello", FileKind.LOG),
    ],
)
def test_a_file_is_told_by_its_content(content: str, kind: FileKind) -> None:
    assert kind_of(content.encode()) is kind


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.text(alphabet='Process 4121:\n\tThread(idle)"Main abc.py', max_size=200))
def test_a_spoiled_text_dump_is_read_or_refused(text: str) -> None:
    try:
        read_py_spy_text(text, 0.0)
    except EvidenceError:
        return


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_any_json_is_a_dump_or_refused(value: object) -> None:
    try:
        read_py_spy_json(json.dumps(value).encode(), 0.0)
    except EvidenceError:
        return


def test_torchruns_error_file_tells_the_exception_and_its_line() -> None:
    stack = 'Traceback (most recent call last):\n  File "/me/train.py", line 7, in load\n    x()\nValueError: bad\n'
    extra = {"py_callstack": stack, "timestamp": "1794708000"}
    error, code = read_error_file({"message": {"message": "ValueError: bad", "extraInfo": extra, "errorCode": 3}})
    assert (error.type, error.message, error.at, error.frames[0].line, code) == ("ValueError", "bad", 1794708000, 7, 3)


@pytest.mark.parametrize("document", [{}, {"message": 3}, {"message": {"message": None}}])
def test_an_error_file_without_an_error_is_refused(document: dict[object, object]) -> None:
    with pytest.raises(EvidenceError):
        read_error_file(document)
