"""The tree of processes below one of ours: who is in it, how to end all of it, how to bury the dead."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Container

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Makes this process the parent of every descendant whose own parent ends."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(death_signal: int, parent: int | None = None) -> None:
    """This process gets the signal when its parent ends. Name the `parent`: it may be gone already."""
    prctl(PR_SET_PDEATHSIG, int(death_signal))
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), death_signal)


def kill_descendants(pid: int, spare: Container[int] = (), timeout_s: float = 5.0) -> list[int]:
    """SIGKILLs the descendants of a process until none is left; returns those that would not die in time.

    A spared process keeps its own descendants. Complete only where orphans cannot leave the tree: where `pid`
    lives and is a subreaper.
    """
    _, left = end_descendants(pid, spare, timeout_s, reap=False)
    return left


def wake_to_end(pid: int) -> list[int]:
    """Stopped descendants are asked to end and continued, in this order: a stopped process hears of nothing."""
    states = processes()
    stopped = [child for child in _descendants(pid, ()) if states.get(child, (0, ""))[1] == "T"]
    for child in stopped:
        kill(child, signal.SIGTERM)
        kill(child, signal.SIGCONT)
    return stopped


def reap_orphans(known: Container[int]) -> None:
    """Buries ended children that this process did not start itself; `known` ones are left to their Popen."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
    except ChildProcessError:
        return
    me = os.getpid()
    for pid, (parent, state) in processes().items():
        if parent == me and state == "Z" and pid not in known:
            _wait(pid)


def end_descendants(pid: int, spare: Container[int], timeout_s: float, *, reap: bool) -> tuple[set[int], list[int]]:
    """The processes that were sent SIGKILL, and those of them that are still there."""
    deadline = time.monotonic() + timeout_s
    killed: set[int] = set()
    while True:
        alive = _descendants(pid, spare)
        for descendant in alive:
            kill(descendant, signal.SIGKILL)
        killed.update(alive)
        if reap:
            reap_all()
        if not alive or time.monotonic() > deadline:
            return killed, alive
        time.sleep(0.01)


def _descendants(pid: int, spare: Container[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for child, (parent, state) in processes().items():
        if state not in "ZX":
            children.setdefault(parent, []).append(child)
    found: list[int] = []
    todo = [pid]
    while todo:
        new = [child for child in children.get(todo.pop(), ()) if child not in spare]
        found += new
        todo += new
    return found


def processes() -> dict[int, tuple[int, str]]:
    """Every process that can be seen: pid → parent, state."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # It ended between the listing and the look, or is hidden from us and so not ours.
        if len(fields) > 17:
            # The first thread of a process may be gone (Z) while others still run: its children are still its own.
            state = "S" if fields[0] == b"Z" and int(fields[17]) > 1 else fields[0].decode()
            found[int(name)] = (int(fields[1]), state)
    return found


def reap_all() -> dict[int, int]:
    """Buries all children that have ended: pid → wait status."""
    ended = {}
    while (result := _wait(-1)) is not None:
        ended[result[0]] = result[1]
    return ended


def _wait(pid: int) -> tuple[int, int] | None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return (ended, status) if ended else None


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # It has ended, or it is another user's: then it shows among those that are left.


def prctl(option: int, value: int | ctypes.Array[ctypes.c_char]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    argument = ctypes.c_ulong(value) if isinstance(value, int) else value
    if libc.prctl(option, argument, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
