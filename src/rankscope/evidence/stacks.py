"""Python stacks of running processes, through py-spy, and of dying ones, from what faulthandler printed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from rankscope.evidence.model import Frame, StackSample, Thread
from rankscope.whose_code import absolute, is_user_file

_THREAD_HEAD = re.compile(
    r"^(?P<current>Current thread|Thread) 0x(?P<tid>[0-9a-fA-F]+)(?: \[(?P<name>.*)\])?"
    r" \(most recent call first\):"
)
_SINGLE_HEAD = "Stack (most recent call first):"
_DUMP_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)$')
_FATAL = "Fatal Python error:"
PTRACE_VARIABLE = "RANKSCOPE_PTRACE"
"""Set to 0, no process is looked into: some sites forbid it, or raise an alarm."""


def sample_stacks(pids: Sequence[int], *, native: bool = False, timeout_s: float = 5.0) -> dict[int, StackSample | str]:
    """The stacks of each process, or why they cannot be had.

    Does not pause the processes, and works on stopped ones; `native=True` adds native frames and pauses each
    for a moment. `timeout_s` holds for each process; the whole call ends within four times that.
    """
    from concurrent.futures import ThreadPoolExecutor  # brings logging, which whoever only reads files does not need

    program = find_py_spy()
    if program is None:
        switched_off = f"py-spy is switched off by {PTRACE_VARIABLE}=0"
        absent = "py-spy is not installed beside this Python nor on the PATH"
        return dict.fromkeys(pids, absent if _may_look() else switched_off)
    deadline = time.monotonic() + 4 * timeout_s
    with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        samples = pool.map(lambda pid: _sample(program, pid, native, timeout_s, deadline), pids)
        return dict(zip(pids, samples, strict=True))


def find_py_spy() -> str | None:
    """The py-spy program that belongs to this Python; None without one, or where it is not wanted."""
    if not _may_look():
        return None
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    for entry in map(Path, filter(None, sys.path)):
        # pip install --target DIR leaves the program in DIR/bin; a prefix in its parent's.
        folders += [entry / "bin", entry.parent / "bin"]
    for folder in folders:
        program = folder / "py-spy"
        if program.is_file() and os.access(program, os.X_OK):
            return str(program)
    return shutil.which("py-spy")


def _may_look() -> bool:
    return os.environ.get(PTRACE_VARIABLE) != "0"


def parse_py_spy(data: bytes, pid: int, working_directory: str | None) -> tuple[Thread, ...]:
    """The threads in py-spy's JSON. Raises ValueError when it is not such."""
    try:
        return tuple(_thread(entry, pid, working_directory) for entry in msgspec.json.decode(data))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"py-spy's answer cannot be read: {error!r}") from error


def parse_faulthandler(text: str) -> tuple[Thread, ...]:
    """The threads of the last dump in what the standard library's faulthandler wrote; empty without one."""
    threads, cut = _dumped_threads(text)
    seen: set[int] = set()
    newest: list[Thread] = []
    # Dumps follow each other without a mark, but each lists a thread once.
    for thread in reversed(threads):
        if thread.tid in seen:
            break
        # New threads are listed first, so the main thread comes last, unless the list was cut before it.
        newest.append(replace(thread, main=not seen and not cut))
        seen.add(thread.tid)
    return tuple(reversed(newest))


def stack_of_fatal_error(text: str) -> tuple[Frame, ...]:
    """Where the thread stood that a `Fatal Python error:` ended; empty when the text holds none."""
    _, found, dump = text.rpartition(_FATAL)
    if not found:
        return ()
    threads, _ = _dumped_threads(dump)
    current = [thread for thread in threads if thread.active]
    if current:
        return current[0].frames
    # A native thread ended the process: the program itself is the thread whose outermost frame is the script.
    scripts = [thread for thread in threads if thread.frames and thread.frames[-1].function == "<module>"]
    return scripts[0].frames if len(scripts) == 1 else ()


def _sample(program: str, pid: int, native: bool, timeout_s: float, deadline: float) -> StackSample | str:
    reason = ""
    # A process that moves can give a torn stack; a second look nearly always is whole.
    for _ in range(2):
        limit = min(timeout_s, deadline - time.monotonic())
        if limit <= 0:
            return reason or "no time was left for it"
        sample = _run_py_spy(program, pid, native, limit)
        if isinstance(sample, StackSample):
            return sample
        reason = sample
        if not os.path.exists(f"/proc/{pid}"):
            return f"process {pid} is gone"
    return reason


def _run_py_spy(program: str, pid: int, native: bool, limit: float) -> StackSample | str:
    how = ["--native"] if native else ["--nonblocking"]
    try:
        cwd: str | None = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        cwd = None
    was_stopped = _is_stopped(pid)
    try:
        # Asked for a backtrace of itself in the environment, py-spy appends it to its reasons.
        done = subprocess.run(
            [program, "dump", *how, "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
            check=False,
            env={**os.environ, "RUST_BACKTRACE": "0", "RUST_LIB_BACKTRACE": "0"},
        )
    except subprocess.TimeoutExpired:
        if native and not was_stopped:
            _resume(pid)
        return f"py-spy gave no answer within {limit:.1f} s"
    except OSError as error:
        return f"py-spy cannot be started: {error}"
    if done.returncode != 0:
        return _reason(done.stderr.decode(errors="replace"))
    try:
        threads = parse_py_spy(done.stdout, pid, cwd)
    except ValueError as error:
        return str(error)
    if not threads:
        return "py-spy saw no Python thread"
    return StackSample(time.time(), threads, "py-spy-native" if native else "py-spy")


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


def _resume(pid: int) -> None:
    """Undoes the stop that a tracer asked for when it was killed before it could let the process go."""
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        if _is_stopped(pid):
            os.kill(pid, signal.SIGCONT)
            return
        time.sleep(0.01)


def _reason(stderr: str) -> str:
    lines = [line.strip() for line in stderr.partition("Stack backtrace:")[0].splitlines() if line.strip()]
    told = [line for line in lines if line != "Caused by:"]
    return f"py-spy: {'; '.join(told[:3])}" if told else "py-spy failed without a word"


def _thread(entry: dict[str, Any], pid: int, cwd: str | None) -> Thread:
    tid = int(entry["os_thread_id"] or 0)
    return Thread(
        tid=tid,
        name=str(entry["thread_name"] or ""),
        main=tid == pid,
        frames=tuple(_frame(frame, cwd) for frame in entry["frames"]),
        owns_gil=bool(entry["owns_gil"]),
        active=bool(entry["active"]),
    )


def _frame(entry: dict[str, Any], cwd: str | None) -> Frame:
    file = str(entry["filename"] or "")
    # Only native frames come with the shared object that they belong to.
    native = entry["module"] is not None
    if not native and cwd is not None:
        file = absolute(file, cwd)
    return Frame(str(entry["name"]), file, int(entry["line"]), not native and is_user_file(file), native)


def _dumped_threads(text: str) -> tuple[list[Thread], bool]:
    """Every thread block of the text, in its order, and whether the last dump was cut short."""
    threads: list[Thread] = []
    open_block = cut = False
    for line in text.splitlines():
        if (head := _THREAD_HEAD.match(line)) or line.startswith(_SINGLE_HEAD):
            tid, name = (int(head["tid"], 16), head["name"] or "") if head else (0, "")
            current = head is None or head["current"].startswith("Current")
            threads.append(Thread(tid, name, False, (), active=current))
            open_block, cut = True, False
        elif open_block and (match := _DUMP_FRAME.match(line)):
            number = 0 if match["line"] == "???" else int(match["line"])
            frame = Frame(match["function"], match["file"], number, is_user_file(match["file"]))
            threads[-1] = replace(threads[-1], frames=(*threads[-1].frames, frame))
        elif not line.startswith("  "):
            open_block, cut = False, cut or line == "..."
    return threads, cut
