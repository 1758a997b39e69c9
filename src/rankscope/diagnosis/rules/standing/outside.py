"""A call to something outside that does not return: network, pipe, file system, sleep; told by the system call."""

from __future__ import annotations

import re

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact, changed
from rankscope.diagnosis.facts.standing import Does, InSyscall, Outside, Sleeps
from rankscope.diagnosis.rules.standing.frames import above_user, in_module, library_call
from rankscope.diagnosis.rules.standing.frozen import NETWORK_FILE_SYSTEMS
from rankscope.diagnosis.rules.standing.stand import CALL, MECHANISM, Stand, movement
from rankscope.diagnosis.views import current_where, newest_main_thread
from rankscope.evidence.model import ProcessSample, RankEvidence

SLEEPS = frozenset({"nanosleep", "clock_nanosleep", "pause", "rt_sigsuspend"})
_RECEIVES = frozenset({"recvfrom", "recvmsg", "recvmmsg", "read", "readv"})
_POLLS = frozenset({"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"})
_SENDS = frozenset({"sendto", "sendmsg", "sendmmsg", "write", "writev", "sendfile"})
_FILES = frozenset({"pread64", "preadv", "pwrite64", "pwritev", "fsync", "fdatasync", "getdents64", "io_uring_enter"})
_OPENS = frozenset({"open", "openat", "openat2"})
_PIPE_OPENS = frozenset({"wait_for_partner", "fifo_open"})
_CONNECTION = re.compile(r"(tcp|udp) (\S+) -> ([^\s,]+)")
_LISTENING = re.compile(r"tcp (\S+) listening")

_NETWORK = (Advice("request-timeout"), Advice("send-in-background"))
_PIPE = (Advice("other-end-of-pipe"), Advice("read-time-limit"))
_FILE_SYSTEM = (Advice("file-system-answers"), Advice("copy-to-local-disk"))
_ADVICE: dict[str, tuple[Advice, ...]] = {
    "sleep": (Advice("polling-time-limit"), Advice("same-pause")),
    "open": (Advice("open-pipe"), Advice("try-ls")),
    "open-pipe": (Advice("open-pipe"),),
    "store-answer": (Advice("look-at-store"),),
    "store-send": (Advice("look-at-store"),),
    "pipe-read": _PIPE,
    "pipe-write": _PIPE,
    "typing": (Advice("no-keyboard"),),
    "network-files": _FILE_SYSTEM,
    "files": _FILE_SYSTEM,
    "event-loop": (Advice("await-time-limit"), Advice("say-pending-tasks")),
}


def blocked_call(rank: RankEvidence) -> Stand | None:
    """What the system call of the main thread waits for; None where it does not tell."""
    sample = rank.processes[-1] if rank.processes else None
    outside = outside_of(sample, rank.environment) if sample is not None else None
    if sample is None or outside is None:
        return None
    at = current_where(rank)
    thread = newest_main_thread(rank)
    frames = thread.frames if thread is not None else ()
    if outside.wants == "input" and any(in_module(frame, "asyncio/") for frame in above_user(frames)):
        outside = Outside("event-loop")
    asleep = outside.wants == "sleep"
    doing: Fact = Sleeps(at) if asleep else changed(outside, call=library_call(frames))
    call = sample.syscall
    return Stand(
        cause="blocked-call",
        at=at,
        doing=doing,
        because=(*((InSyscall(call.name, call.target or ""),) if call is not None else ()), *movement(rank)),
        fix=advice_for(outside),
        summary=Does(rank.rank, doing) if asleep else None,
        explains=MECHANISM if asleep else CALL,
    )


def advice_for(outside: Outside) -> tuple[Advice, ...]:
    if outside.wants in ("read", "write"):
        return (Advice("what-is-this-path", path=outside.target),)
    return _ADVICE.get(outside.wants, _NETWORK)


def outside_of(sample: ProcessSample, environment: dict[str, str]) -> Outside | None:
    """What a process waits for outside itself, by its system call; None where unknown."""
    call = sample.syscall
    if call is None:
        return _file_system(sample, None)
    target = call.target or ""
    if call.name in SLEEPS:
        return Outside("sleep")
    if call.name in _OPENS:
        return Outside("open-pipe" if sample.wchan in _PIPE_OPENS else "open", target)
    if call.name == "connect":
        return Outside("connect", _remote(target) or target)
    if call.name in {"accept", "accept4"} or _LISTENING.search(target):
        listening = _LISTENING.search(target)
        return Outside("accept", listening[1] if listening else "")
    if call.name in _RECEIVES | _POLLS | _SENDS:
        return _channel(sample, call.name, target, environment)
    return _file_system(sample, target if call.name in _FILES else None)


def _channel(sample: ProcessSample, call: str, target: str, environment: dict[str, str]) -> Outside | None:
    sends = call in _SENDS
    remote = _remote(target)
    if remote is None and not target and call in _POLLS and len(set(sample.sockets)) == 1:
        remote = sample.sockets[0]
    if remote is not None:
        port = environment.get("MASTER_PORT")
        if port and remote.rpartition(":")[2] == port:
            return Outside("store-send" if sends else "store-answer", remote)
        return Outside("send" if sends else "answer", remote)
    if target.startswith("pipe") or target == "epoll of pipe":
        return Outside("pipe-write" if sends else "pipe-read")
    if target.startswith(("unix", "socket")):
        return Outside("local-send" if sends else "local-answer", target)
    if target.startswith(("/dev/pts", "/dev/tty")):
        return Outside("typing")
    if target.startswith("/"):
        return Outside("write" if sends else "read", target)
    return Outside("input") if call in _POLLS else None


def _file_system(sample: ProcessSample, path: str | None) -> Outside | None:
    name = sample.wchan or ""
    remote = name.startswith(NETWORK_FILE_SYSTEMS)
    if not remote and path is None:
        return None
    return Outside("network-files" if remote else "files", path or name)


def _remote(target: str) -> str | None:
    match = _CONNECTION.search(target)
    return match[3] if match else None
