"""What launchers and the kernel write about processes: exit codes, signals, kills, the size of the job."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator

import msgspec

_SUMMARY = re.compile(
    r"time\s+: (?P<time>\S+)\s+host\s+: (?P<host>\S+)\s+rank\s+: (?P<rank>\d{1,6}) \(local_rank: \d+\)\s+"
    r"exitcode\s+: (?P<code>-?\d{1,10})\s+\(pid: (?P<pid>\d{1,10})\)"
)
"""torchrun's table of failures."""
_SRUN = re.compile(
    r"error: (?P<host>\S+): tasks? (?P<ranks>[\d,-]+): (?:Exited with exit code (?P<code>\d{1,10})|(?P<words>.+))$"
)
_MPIRUN = re.compile(
    r"process rank (?P<rank>\d{1,6}) with PID (?P<pid>\d{1,10}) on node (?P<host>\S+) "
    r"exited on signal (?P<signal>\d{1,3})"
)
_SPAWNED = re.compile(
    r"process (?P<rank>\d{1,6}) terminated with (?:exit code (?P<code>\d{1,10})|signal (?P<signal>SIG\w+))"
)
_STOPPED = re.compile(r"Sending process (?P<pid>\d{1,10}) closing signal")
_WORLD = re.compile(r"\bworld[_ ]size ?[=:] ?(\d{1,6})\b|MEMBER: \d+/(\d{1,6})\b", re.IGNORECASE)
_SIGNALS = {
    "killed": 9,
    "out of memory": 9,
    "segmentation fault": 11,
    "aborted": 6,
    "bus error": 7,
    "terminated": 15,
    "floating point exception": 8,
    "illegal instruction": 4,
}
_KERNEL = re.compile(
    r"Out of memory: Kill|Memory cgroup out of memory|oom-kill:|oom_reaper|Killed process \d+|NVRM: Xid|"
    r"segfault at |fallen off the bus|nfs: server .* not responding"
)


class Ending(msgspec.Struct, frozen=True):
    at: float
    rank: int | None = None
    code: int | None = None
    pid: int | None = None
    host: str = ""
    stopped_pid: int | None = None
    """A process that the launcher stopped because another had failed."""
    world_size: int | None = None


class KernelLine(msgspec.Struct, frozen=True):
    text: str
    at: float | None


def kernel_line(text: str, at: float | None) -> KernelLine | None:
    return KernelLine(text, at) if _KERNEL.search(text) else None


def ends_in(text: str, around: bytes, at: float) -> Iterator[Ending]:
    """What a line tells; `around` is the text that it stands in, for tables of several lines."""
    if "exitcode" in text and ": " in text:
        for row in _SUMMARY.finditer(around.decode("utf-8", "replace")):
            yield Ending(_time(row["time"], at), int(row["rank"]), int(row["code"]), int(row["pid"]), row["host"])
    if match := _STOPPED.search(text):
        yield Ending(at, stopped_pid=int(match["pid"]))
    if match := _SRUN.search(text):
        code = int(match["code"]) if match["code"] else _code_of(match["words"])
        for rank in _numbers(match["ranks"]):
            yield Ending(at, rank, code, host=match["host"])
    if match := _MPIRUN.search(text):
        yield Ending(at, int(match["rank"]), -int(match["signal"]), int(match["pid"]), match["host"])
    if match := _SPAWNED.search(text):
        code = int(match["code"]) if match["code"] else -_signal_number(match["signal"])
        yield Ending(at, int(match["rank"]), code)
    if match := _WORLD.search(text):
        yield Ending(at, world_size=int(match[1] or match[2]))


def _time(text: str, otherwise: float) -> float:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d_%H:%M:%S"))
    except ValueError:
        return otherwise


def _code_of(words: str | None) -> int | None:
    lower = (words or "").lower()
    return next((-number for word, number in _SIGNALS.items() if word in lower), None)


def _signal_number(name: str) -> int:
    try:
        return int(signal.Signals[name])
    except KeyError:
        return int(signal.SIGKILL)


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found += range(int(first), min(int(last or first), int(first) + 10_000) + 1)
    return found
