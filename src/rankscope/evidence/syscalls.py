"""Which system call a number is, and what its arguments mean, for the calls in which programs wait."""

from __future__ import annotations

import platform

_X86_64 = {
    0: "read",
    1: "write",
    2: "open",
    7: "poll",
    16: "ioctl",
    17: "pread64",
    18: "pwrite64",
    19: "readv",
    20: "writev",
    23: "select",
    34: "pause",
    35: "nanosleep",
    40: "sendfile",
    42: "connect",
    43: "accept",
    44: "sendto",
    45: "recvfrom",
    46: "sendmsg",
    47: "recvmsg",
    61: "wait4",
    65: "semop",
    70: "msgrcv",
    72: "fcntl",
    73: "flock",
    74: "fsync",
    75: "fdatasync",
    128: "rt_sigtimedwait",
    130: "rt_sigsuspend",
    202: "futex",
    217: "getdents64",
    219: "restart_syscall",
    220: "semtimedop",
    230: "clock_nanosleep",
    232: "epoll_wait",
    247: "waitid",
    257: "openat",
    270: "pselect6",
    271: "ppoll",
    281: "epoll_pwait",
    288: "accept4",
    295: "preadv",
    296: "pwritev",
    299: "recvmmsg",
    307: "sendmmsg",
    426: "io_uring_enter",
    437: "openat2",
    441: "epoll_pwait2",
}

_AARCH64 = {
    22: "epoll_pwait",
    25: "fcntl",
    29: "ioctl",
    32: "flock",
    56: "openat",
    61: "getdents64",
    63: "read",
    64: "write",
    65: "readv",
    66: "writev",
    67: "pread64",
    68: "pwrite64",
    69: "preadv",
    70: "pwritev",
    71: "sendfile",
    72: "pselect6",
    73: "ppoll",
    82: "fsync",
    83: "fdatasync",
    95: "waitid",
    98: "futex",
    101: "nanosleep",
    115: "clock_nanosleep",
    128: "restart_syscall",
    133: "rt_sigsuspend",
    137: "rt_sigtimedwait",
    188: "msgrcv",
    192: "semtimedop",
    193: "semop",
    202: "accept",
    203: "connect",
    206: "sendto",
    207: "recvfrom",
    211: "sendmsg",
    212: "recvmsg",
    242: "accept4",
    243: "recvmmsg",
    260: "wait4",
    269: "sendmmsg",
    426: "io_uring_enter",
    437: "openat2",
    441: "epoll_pwait2",
}

_TABLES = {"x86_64": _X86_64, "aarch64": _AARCH64}

DESCRIPTOR_FIRST = frozenset(
    {
        *("read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "sendfile"),
        *("recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg", "connect", "accept", "accept4"),
        *("fcntl", "flock", "ioctl", "fsync", "fdatasync", "getdents64", "io_uring_enter"),
        *("epoll_wait", "epoll_pwait", "epoll_pwait2"),
    }
)
"""Calls whose first argument is a file descriptor."""

POLLS = frozenset({"poll", "ppoll"})
SELECTS = frozenset({"select", "pselect6"})
EPOLLS = frozenset({"epoll_wait", "epoll_pwait", "epoll_pwait2"})

PATH_ARGUMENT = {"open": 0, "openat": 1, "openat2": 1}
"""Which argument of an opening call points to the path."""


def syscall_name(number: int, machine: str | None = None) -> str:
    """`read`, `futex`, ...; `syscall 999` for a call that this table does not know."""
    table = _TABLES.get(machine or platform.machine(), {})
    return table.get(number, f"syscall {number}")
