"""Which rank a process is that was told so by an argument: multiprocessing has no environment for it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

import msgspec

from rankscope.evidence.stacks import find_py_spy

_NAMES = frozenset({"rank", "global_rank", "local_rank", "proc_rank", "rank_id", "process_index", "gpu"})
_SPAWN = "torch/multiprocessing/spawn.py"
_TIME_S = 5.0


def ranks_by_arguments(pids: Sequence[int]) -> dict[int, int] | None:
    """Process → rank, by the argument of the function that multiprocessing runs in it. Nothing else of the values is
    kept. None where one does not tell, or two tell the same."""
    program = find_py_spy()
    if program is None:
        return None
    found: dict[int, int] = {}
    for pid in pids:
        rank = _rank(program, pid)
        if rank is None or rank in found.values():
            return None
        found[pid] = rank
    return found


def _rank(program: str, pid: int) -> int | None:
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--locals", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIME_S,
            check=True,
        )
        threads = msgspec.json.decode(done.stdout)
        main = next(thread for thread in threads if thread.get("os_thread_id") == pid)
        return rank_in_frames(main["frames"])
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError, StopIteration, KeyError, TypeError):
        return None


def rank_in_frames(frames: Sequence[dict[str, Any]]) -> int | None:
    """From py-spy's frames with their variables, innermost first: the number that torch's spawn gave, else an argument
    of that name of the outermost function."""
    for frame in frames:
        if str(frame.get("filename", "")).endswith(_SPAWN) and frame.get("name") == "_wrap":
            return _number(frame, frozenset({"i"}))
    for frame in reversed(frames):
        number = _number(frame, _NAMES)
        if number is not None:
            return number
    return None


def _number(frame: dict[str, Any], names: frozenset[str]) -> int | None:
    for variable in frame.get("locals") or ():
        text = str(variable.get("repr", ""))
        if variable.get("name") in names and variable.get("arg") and text.isdigit() and len(text) <= 6:
            return int(text)
    return None
