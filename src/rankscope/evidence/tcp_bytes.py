"""Bytes that TCP connections have carried, as the kernel counts them.

`/proc/PID/io` does not count what goes through send and recv: a slow download looks like a service that never answers.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection

from rankscope.evidence.descriptors import open_descriptors

_SOCK_DIAG = 4
_BY_FAMILY = 20
_DUMP_REQUEST = 0x301
_DONE, _ERROR = 3, 2
_INFO = 2
"""The attribute that holds `struct tcp_info`."""
_ESTABLISHED_OR_HALF_CLOSED = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8
_HEADER = struct.Struct("=IHHII")
_MESSAGE_SIZE, _INODE_AT = 72, 68
_COUNTERS = struct.Struct("=QQ")
_COUNTERS_AT = 120
"""Of `tcpi_bytes_acked` and `tcpi_bytes_received` in `struct tcp_info`, since Linux 4.1."""
_BUFFER = 1 << 18
_TIMEOUT_S = 0.5


def network_bytes(pids: Collection[int]) -> int | None:
    """What the living TCP connections of these processes have carried so far, in both directions; None where the kernel
    does not tell, or may not be asked."""
    inodes = {
        int(link[8:-1])
        for pid in pids
        for link in (open_descriptors(pid) or {}).values()
        if link.startswith("socket:[")
    }
    if not inodes:
        return 0
    try:
        return sum(_carried(inodes))
    except (OSError, struct.error):
        return None


def _carried(inodes: set[int]) -> list[int]:
    found: list[int] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            # Family, protocol, wanted attributes, states; then an empty address: all connections.
            asked = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _ESTABLISHED_OR_HALF_CLOSED)
            header = _HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _DUMP_REQUEST, 0, 0)
            kernel.sendto(header + asked, (0, 0))
            more = True
            while more:
                more = _read(kernel.recv(_BUFFER), inodes, found)
    return found


def _read(data: bytes, inodes: set[int], found: list[int]) -> bool:
    """Takes what one datagram says; whether more of them follow."""
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        if kind == _ERROR:
            code = -struct.unpack_from("=i", data, at + _HEADER.size)[0]
            raise OSError(code, os.strerror(code))
        if kind == _DONE or size < _HEADER.size:
            return False
        body = at + _HEADER.size
        if struct.unpack_from("=I", data, body + _INODE_AT)[0] in inodes:
            found.append(_counted(data, body + _MESSAGE_SIZE, at + size))
        at += -(-size // 4) * 4
    return True


def _counted(data: bytes, at: int, end: int) -> int:
    while at + 4 <= end:
        size, kind = struct.unpack_from("=HH", data, at)
        if kind == _INFO and size >= 4 + _COUNTERS_AT + _COUNTERS.size:
            return sum(_COUNTERS.unpack_from(data, at + 4 + _COUNTERS_AT))
        if size < 4:
            break
        at += -(-size // 4) * 4
    return 0
