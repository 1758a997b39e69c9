"""A call to something outside that does not return: network, child process, pipe, file system, sleep."""

from __future__ import annotations

import re

from rankscope.diagnosis.finding import Possibility
from rankscope.diagnosis.rules.standing.frames import above_user, in_module, library_call, own_frames
from rankscope.diagnosis.rules.standing.frozen import NETWORK_FILE_SYSTEMS, stopped_words
from rankscope.diagnosis.rules.standing.stand import Stand, movement
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import current_where, innermost_user_frame, newest_main_thread, place, where
from rankscope.evidence.model import ChildProcess, ProcessSample, RankEvidence

_RECEIVES = frozenset({"recvfrom", "recvmsg", "recvmmsg", "read", "readv"})
_POLLS = frozenset({"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"})
_SENDS = frozenset({"sendto", "sendmsg", "sendmmsg", "write", "writev", "sendfile"})
_FILES = frozenset({"pread64", "preadv", "pwrite64", "pwritev", "fsync", "fdatasync", "getdents64", "io_uring_enter"})
_OPENS = frozenset({"open", "openat", "openat2"})
_SLEEPS = frozenset({"nanosleep", "clock_nanosleep", "pause", "rt_sigsuspend"})
_WAITS = frozenset({"wait4", "waitid"})
_CONNECTION = re.compile(r"(tcp|udp) (\S+) -> ([^\s,]+)")
_LISTENING = re.compile(r"tcp (\S+) listening")

_NETWORK_FIX = (
    "give the request a timeout, so that a service that does not answer raises an error",
    "send from a background thread, or only where nobody waits for this rank",
)
_CHILD_FIX = (
    "give the wait a timeout (`subprocess.run(..., timeout=...)`) and end the child when it passes",
    "read the child's output while it runs: a full pipe stops it (use communicate())",
)


def awaited_child(rank: RankEvidence) -> Stand | None:
    """The main thread waits for a child process: a command, or a worker of a pool."""
    awaited = _awaited_children(rank, rank.processes[-1]) if rank.processes else ()
    return _child_wait(rank, awaited, current_where(rank)) if awaited else None


def blocked_call(rank: RankEvidence) -> Stand | None:
    """What the system call of the main thread waits for; None where it does not tell."""
    sample = rank.processes[-1] if rank.processes else None
    thread = newest_main_thread(rank)
    frames = thread.frames if thread is not None else ()
    words = outside_words(sample, rank.environment) if sample is not None else None
    at = current_where(rank)
    if words is None:
        return None
    doing, fix = words
    called = library_call(frames)
    sleeping = doing == "sleeping"
    if sleeping:
        doing = f"sleeping in {place(at)}"
    elif called is not None:
        doing = f"{doing} in {called}"
    call = sample.syscall if sample is not None else None
    fact = f"waits in {call.name}" + (f" on {call.target}" if call.target else "") if call is not None else ""
    return Stand(
        cause="blocked-call",
        at=at,
        doing=doing,
        because=tuple(filter(None, (fact, *movement(rank)))),
        fix=fix,
        summary=f"rank {rank.rank} is {doing}" if sleeping else None,
    )


def outside_words(sample: ProcessSample, environment: dict[str, str]) -> tuple[str, tuple[str, ...]] | None:
    """What a process waits for outside itself, by its system call, and what helps; None where unknown."""
    call = sample.syscall
    if call is None:
        return _file_system_words(sample, None)
    target = call.target or ""
    if call.name in _SLEEPS:
        return "sleeping", (
            "see what the sleep waits for: a loop that polls needs a time limit and a word about it",
            "let all ranks take the same pause, or none",
        )
    if call.name in _OPENS:
        what = f"opening {target or 'a file'}"
        if (sample.wchan or "") in {"wait_for_partner", "fifo_open"}:
            return f"{what}, a pipe whose other end nobody opens", _PIPE_FIX
        return f"{what}, which does not return", (
            *_PIPE_FIX,
            "or the file system does not answer: try `ls` on it",
        )
    if call.name == "connect":
        return f"connecting to {_remote(target) or target or 'an address'}", _NETWORK_FIX
    if call.name in {"accept", "accept4"} or _LISTENING.search(target):
        listening = _LISTENING.search(target)
        return f"waiting for a connection to {listening[1] if listening else 'its own port'}", _NETWORK_FIX
    if call.name in _RECEIVES | _POLLS | _SENDS:
        return _channel_words(sample, call.name, target, environment)
    if call.name in _FILES:
        return _file_system_words(sample, target)
    return _file_system_words(sample, None)


_PIPE_FIX = ("opening a named pipe waits for its other end: start that first, or open with O_NONBLOCK",)


def _channel_words(
    sample: ProcessSample, call: str, target: str, environment: dict[str, str]
) -> tuple[str, tuple[str, ...]] | None:
    verb = "sending to" if call in _SENDS else "waiting for an answer from"
    remote = _remote(target)
    if remote is None and not target and call in _POLLS and len(set(sample.sockets)) == 1:
        remote = sample.sockets[0]
    if remote is not None:
        port = environment.get("MASTER_PORT")
        if port and remote.rpartition(":")[2] == port:
            return f"{verb} the job's own store at {remote}", (
                "see what the process on that port, usually rank 0, does",
            )
        return f"{verb} {remote}", _NETWORK_FIX
    if target.startswith("pipe") or target == "epoll of pipe":
        words = "writing to a pipe that nobody reads" if call in _SENDS else "reading from a pipe that nobody writes to"
        return words, ("look at the process at the other end of the pipe", "read with a time limit")
    if target.startswith(("unix", "socket")):
        return f"{verb} a local service ({target})", _NETWORK_FIX
    if target.startswith("/dev/pts") or target.startswith("/dev/tty"):
        return "waiting for somebody to type", ("a rank has no keyboard: remove input(), breakpoint() and pdb",)
    if target.startswith("/"):
        return f"{'writing' if call in _SENDS else 'reading'} {target}, which does not return", (
            f"see whether {target} is a pipe or a device, or on a network file system that does not answer",
        )
    if call in _POLLS:
        return "waiting for input on its descriptors", _NETWORK_FIX
    return None


def _file_system_words(sample: ProcessSample, path: str | None) -> tuple[str, tuple[str, ...]] | None:
    name = sample.wchan or ""
    remote = name.startswith(NETWORK_FILE_SYSTEMS)
    if not remote and path is None:
        return None
    where_to = f" for {path}" if path else ""
    kind = "a network file system" if remote else "the file system"
    return f"waiting for {kind}{where_to}{f' ({name})' if name else ''}", (
        "see whether the file system answers: `df`, `ls`, the server's state, `dmesg`",
        "copy the data to a local disk before the job",
    )


def _remote(target: str) -> str | None:
    match = _CONNECTION.search(target)
    return match[3] if match else None


def _awaited_children(rank: RankEvidence, sample: ProcessSample) -> tuple[ChildProcess, ...]:
    """The child processes that the main thread waits for, by its system call or its library frames."""
    children = tuple(child for child in rank.children if child.kind == "child")
    if not children:
        return ()
    call = sample.syscall
    thread = newest_main_thread(rank)
    inner = above_user(thread.frames) if thread is not None else ()
    if call is not None and call.name in _WAITS:
        named = tuple(child for child in children if call.target == f"process {child.pid}")
        return named or tuple(child for child in children if child.ppid == rank.pid) or children
    modules = (
        "subprocess.py",
        "multiprocessing/pool.py",
        "concurrent/futures/process.py",
        "multiprocessing/popen_fork.py",
    )
    if any(in_module(frame, module) for frame in inner for module in modules):
        standing = tuple(child for child in children if _child_place(child) is not None)
        return standing or children
    if call is not None and (call.target or "").startswith("pipe") and len(children) == 1:
        return children
    return ()


def _child_wait(rank: RankEvidence, children: tuple[ChildProcess, ...], at: Where | None) -> Stand:
    child = children[0]
    names = ", ".join(f"{each.pid} ({each.command[:60]})" for each in children[:3])
    inside = _child_place(child)
    state = stopped_words(child.processes) or (f"which stands in {place(inside)}" if inside is not None else "")
    if not state and child.processes and (told := outside_words(child.processes[-1], rank.environment)) is not None:
        state = f"which is {told[0]}"
    doing = f"waiting for child process{'es' if len(children) > 1 else ''} {names}" + (f", {state}" if state else "")
    return Stand(
        cause="blocked-call",
        at=at,
        doing=doing,
        because=(f"the main thread waits for {names}", *movement(rank)),
        fix=_CHILD_FIX,
        alternatives=(Possibility("frozen-process", "possible", f"child {child.pid} is {state}"),)
        if state.startswith(("stopped", "in uninterruptible"))
        else (),
    )


def _child_place(child: ChildProcess) -> Where | None:
    frames = own_frames(child)
    return None if frames is None else where(innermost_user_frame(frames))
