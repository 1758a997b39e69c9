"""What a process waits for: its system call, the file or socket behind it, the lock it wants."""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from rankscope.evidence.model import FileLock, Syscall
from rankscope.evidence.syscalls import DESCRIPTOR_FIRST, EPOLLS, PATH_ARGUMENT, POLLS, SELECTS, syscall_name

MAX_SOCKETS = 16
_MAX_POLLED = 64
_MAX_WATCHED = 4
_ESTABLISHED, _LISTENING = 0x01, 0x0A
_GONE = (FileNotFoundError, ProcessLookupError)


def current_syscall(pid: int) -> Syscall | None:
    """The call in which the main thread stands; None when it runs, is gone, or may not be looked into."""
    try:
        fields = Path(f"/proc/{pid}/syscall").read_text().split()
    except (*_GONE, PermissionError):
        return None
    # `running`, or `-1 SP PC` for a thread that is blocked outside any call.
    if len(fields) < 7:
        return None
    name = syscall_name(int(fields[0]))
    arguments = [int(field, 16) for field in fields[1:7]]
    if name in PATH_ARGUMENT:
        return Syscall(name, target=_path_in_memory(pid, arguments[PATH_ARGUMENT[name]]))
    if name == "wait4":
        awaited = _signed(arguments[0])
        return Syscall(name, target=f"process {awaited}" if awaited > 0 else None)
    fd = _descriptor(pid, name, arguments)
    if fd is None:
        return Syscall(name)
    if name in EPOLLS:
        return Syscall(name, fd, _watched(pid, fd) or describe(pid, fd))
    return Syscall(name, fd, describe(pid, fd))


def describe(pid: int, fd: int) -> str | None:
    """What a descriptor is: a path, `pipe`, `tcp A:p -> B:q`, `unix PATH`; None when it cannot be seen."""
    try:
        link = os.readlink(f"/proc/{pid}/fd/{fd}")
    except (*_GONE, PermissionError):
        return None
    return _describe_link(pid, link)


def open_descriptors(pid: int) -> dict[int, str] | None:
    """Descriptor → what it links to; None when it may not be seen."""
    links: dict[int, str] = {}
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                links[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
            except FileNotFoundError:
                continue
    except (*_GONE, PermissionError):
        return None
    return links


def established_sockets(pid: int, links: Mapping[int, str]) -> tuple[str, ...]:
    """The remote addresses of the process's established TCP connections, at most 16."""
    return tuple(_address(fields[2]) for fields in islice(_own_connections(pid, links), MAX_SOCKETS))


def unsent_bytes(pid: int, links: Mapping[int, str]) -> int:
    """What the process has given to its TCP connections, and their other ends have not taken yet."""
    return sum(int(fields[4].partition(":")[0], 16) for fields in _own_connections(pid, links))


def _own_connections(pid: int, links: Mapping[int, str]) -> Iterator[list[str]]:
    own = {link[8:-1] for link in links.values() if link.startswith("socket:[")}
    for table in ("tcp", "tcp6") if own else ():
        for fields in _socket_table(pid, table):
            if int(fields[3], 16) == _ESTABLISHED and fields[9] in own:
                yield fields


def waited_lock(pid: int, syscall: Syscall | None = None) -> FileLock | None:
    """The file lock that some thread of the process waits for, and who holds it; None without one."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except PermissionError:
        return None
    holders: dict[str, int] = {}
    for line in lines:
        number, *fields = line.split()
        if not fields:
            continue
        if fields[0] != "->":
            # FLOCK ADVISORY WRITE PID DEV:INODE START END
            holders[number] = int(fields[3])
        elif int(fields[4]) == pid:
            kind = "flock" if fields[1] == "FLOCK" else "posix"
            holder = holders.get(number, 0)
            return FileLock(_locked_path(pid, fields[5], syscall), kind, holder if holder > 0 else None)
    return None


def _locked_path(pid: int, identity: str, syscall: Syscall | None) -> str:
    if syscall is not None and syscall.name in {"flock", "fcntl"} and syscall.target is not None:
        return syscall.target
    major, minor, inode = identity.split(":")
    wanted = (int(major, 16), int(minor, 16), int(inode))
    for fd, link in (open_descriptors(pid) or {}).items():
        try:
            found = os.stat(f"/proc/{pid}/fd/{fd}")
        except OSError:  # any failing file system below: not the file that is looked for
            continue
        if (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino) == wanted:
            return link
    return f"inode {inode} of device {major}:{minor}"


def _descriptor(pid: int, name: str, arguments: list[int]) -> int | None:
    if name in DESCRIPTOR_FIRST:
        return _signed(arguments[0])
    if name in POLLS and 0 < arguments[1] <= _MAX_POLLED:
        data = _memory(pid, arguments[0], 8 * arguments[1])
        return next((fd for fd, _, _ in struct.iter_unpack("=ihh", data[: len(data) // 8 * 8]) if fd >= 0), None)
    if name in SELECTS and 0 < arguments[0] <= 1024:
        for pointer in arguments[1:3]:
            bits = int.from_bytes(_memory(pid, pointer, (arguments[0] + 7) // 8), "little")
            if bits:
                return (bits & -bits).bit_length() - 1
    return None


def _signed(argument: int) -> int:
    """The C int in a 64-bit register."""
    low = argument & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


def _memory(pid: int, address: int, size: int) -> bytes:
    """Bytes of the process's memory, read without stopping it; empty when not permitted."""
    if address == 0:
        return b""
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except (*_GONE, PermissionError):
        return b""
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):  # the address is no longer mapped: the call has returned meanwhile
        return b""
    finally:
        os.close(memory)


def _path_in_memory(pid: int, address: int) -> str | None:
    text, end, _ = _memory(pid, address, 4096).partition(b"\0")
    if not text or not end:
        return None
    path = os.fsdecode(text)
    try:
        return os.path.normpath(os.path.join(os.readlink(f"/proc/{pid}/cwd"), path))
    except (*_GONE, PermissionError):
        return path


def _watched(pid: int, fd: int) -> str | None:
    """The descriptors behind an epoll descriptor."""
    try:
        lines = Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines()
    except (*_GONE, PermissionError):
        return None
    watched = [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
    targets = [target for one in sorted(watched)[:_MAX_WATCHED] if (target := describe(pid, one))]
    return f"epoll of {', '.join(targets)}" if targets else None


def _describe_link(pid: int, link: str) -> str:
    if link.startswith("pipe:["):
        return "pipe"
    if not link.startswith("socket:["):
        return link
    inode = link[8:-1]
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for fields in _socket_table(pid, table):
            if fields[9] == inode:
                kind = table[:3]
                if kind == "tcp" and int(fields[3], 16) == _LISTENING:
                    return f"tcp {_address(fields[1])} listening"
                return f"{kind} {_address(fields[1])} -> {_address(fields[2])}"
    for fields in _socket_table(pid, "unix"):
        if fields[6] == inode:
            return f"unix {fields[7]}" if len(fields) > 7 else "unix socket"
    return "socket"


def _socket_table(pid: int, table: str) -> Iterator[list[str]]:
    try:
        with open(f"/proc/{pid}/net/{table}", errors="replace") as file:
            next(file, None)
            yield from (line.split() for line in file)
    except OSError:  # gone, hidden, or EINVAL from the net folder of a process that has just ended
        return


def _address(field: str) -> str:
    """`0100007F:2328` → `127.0.0.1:9000`; the kernel prints 32-bit words in the machine's byte order."""
    host, _, port = field.partition(":")
    words = struct.pack(f"={len(host) // 8}I", *(int(host[at : at + 8], 16) for at in range(0, len(host), 8)))
    if len(words) == 4:
        return f"{ipaddress.IPv4Address(words)}:{int(port, 16)}"
    address = ipaddress.IPv6Address(words)
    mapped = address.ipv4_mapped
    return f"{mapped}:{int(port, 16)}" if mapped else f"[{address}]:{int(port, 16)}"
