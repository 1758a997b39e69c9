"""A lock that a thread waits for and holds itself, as the source and its stack tell."""

from __future__ import annotations

import ast

import pytest

from conftest import Rankscope
from rankscope.diagnosis.source.held_locks import held_already
from rankscope.evidence.model import Frame

METHODS = """
import threading
class Cache:
    def __init__(self):
        self.lock = threading.Lock()
    def fetch(self):
        with self.lock:  # held
            self.trim()  # outer
    def trim(self):
        self.lock.acquire()  # inner
"""
NESTED = """
from threading import Lock
guard = Lock()
def flush():
    with guard:  # inner
        pass
def write():
    guard.acquire()  # held
    try:
        flush()  # outer
    finally:
        guard.release()
"""
SAME_FUNCTION = """
import multiprocessing as mp
lock = mp.Lock()
def run():
    with lock:  # held
        if True:
            with lock:  # inner
                pass
"""
OF_A_FIELD = """
import threading
from dataclasses import dataclass, field
@dataclass
class Box:
    lock: threading.Lock = field(default_factory=threading.Lock)
    def put(self):
        with self.lock:  # held
            self.size  # outer
    @property
    def size(self):
        with self.lock:  # inner
            return 1
"""


def frames_of(text: str) -> tuple[Frame, ...]:
    """Where `# inner` and `# outer` stand, innermost first."""
    lines = text.split("\n")
    at = [number for mark in ("# inner", "# outer") for number, line in enumerate(lines, 1) if mark in line]
    return tuple(Frame("f", "/job/train.py", line, True) for line in at)


def held(text: str) -> Frame | None:
    tree = ast.parse(text)
    return held_already(frames_of(text), lambda _file: tree)


@pytest.mark.parametrize("text", [METHODS, NESTED, SAME_FUNCTION, OF_A_FIELD])
def test_the_line_that_took_the_lock_is_found(text: str) -> None:
    found = held(text)
    assert found is not None
    assert "# held" in text.split("\n")[found.line - 1]


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        pytest.param(METHODS, "threading.Lock()", "threading.RLock()", id="it may be taken twice"),
        pytest.param(METHODS, "threading.Lock()", "make_lock()", id="nobody knows what it is"),
        pytest.param(METHODS, "self.trim()", "other.trim()", id="another object"),
        pytest.param(METHODS, "with self.lock:", "with self.entries:", id="another lock"),
        pytest.param(METHODS, ".acquire()", ".acquire(timeout=5)", id="it does not wait for ever"),
        pytest.param(METHODS, ".acquire()", ".acquire(blocking=False)", id="it does not wait"),
        pytest.param(
            METHODS,
            "        self.lock.acquire()",
            "        self.lock.release()\n        self.lock.acquire()",
            id="lent",
        ),
        pytest.param(METHODS, "self.trim()", "self.lock.release()\n            self.trim()", id="released before"),
        pytest.param(METHODS, "with self.lock:", "if self.lock.locked():", id="only looked at"),
        pytest.param(METHODS, "class Cache:", "class Cache:\n    lock = None", id="not always a lock"),
        pytest.param(NESTED, "    flush()", "    guard.release()\n        flush()", id="released in its block"),
        pytest.param(NESTED, "    with guard:", "    guard = Lock()\n    with guard:", id="of the function alone"),
        pytest.param(NESTED, "guard = Lock()\ndef", "def", id="not of this file"),
        pytest.param(SAME_FUNCTION, "if True:", "if True:\n            lock.release()", id="released in between"),
    ],
)
def test_another_lock_or_one_that_was_released_is_not(text: str, old: str, new: str) -> None:
    assert text.count(old) >= 1
    assert held(text.replace(old, new)) is None


def test_a_call_that_came_back_through_a_library_may_be_of_another_object() -> None:
    tree = ast.parse(METHODS)
    inner, outer = frames_of(METHODS)
    between = Frame("map", "/lib/pool.py", 7, False)
    assert held_already((inner, between, outer), {"/job/train.py": tree}.get) is None
    tree = ast.parse(NESTED)
    inner, outer = frames_of(NESTED)
    assert held_already((inner, between, outer), {"/job/train.py": tree}.get) is not None


@pytest.mark.slow
def test_it_is_proven_while_the_others_wait_and_the_job_is_stopped(rankscope: Rankscope) -> None:
    program = METHODS + (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "cache = Cache()\n"
        "for step in range(8):\n"
        "    if dist.get_rank() == 1 and step == 5:\n"
        "        cache.fetch()\n"
        "    dist.all_reduce(torch.ones(4))\n"
    )
    ended = rankscope.run("--stall-after", 300, rankscope.script(program))
    verdict = ended.verdict
    assert ended.code == 75
    assert (verdict["outcome"], verdict["cause"], verdict["certainty"]) == ("hang", "lock-wait", "proven")
    (culprit,) = verdict["culprits"]
    assert culprit["rank"] == 1
    assert "# inner" in program.split("\n")[culprit["where"]["line"]]
    assert "that it holds itself since Cache.fetch (train.py:6)" in verdict["headline"]
    assert "threading.RLock()" in verdict["fix"][0]


@pytest.mark.slow
def test_several_ranks_that_wait_for_themselves_are_all_named(rankscope: Rankscope) -> None:
    program = METHODS + (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "cache = Cache()\n"
        "for step in range(8):\n"
        "    if dist.get_rank() > 0 and step == 5:\n"
        "        cache.fetch()\n"
        "    dist.all_reduce(torch.ones(4))\n"
    )
    verdict = rankscope.run("--stall-after", 300, rankscope.script(program), nproc=3).verdict
    assert (verdict["cause"], verdict["certainty"]) == ("lock-wait", "proven")
    assert sorted(culprit["rank"] for culprit in verdict["culprits"]) == [1, 2]
