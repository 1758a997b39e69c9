"""Bytes of TCP connections, which `/proc/PID/io` does not count."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from rankscope.evidence import procfs, tcp_bytes
from rankscope.evidence.procfs import sample_process


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            yield one, other


def carry(one: socket.socket, other: socket.socket, size: int) -> None:
    one.sendall(b"x" * size)
    while size > 0:
        size -= len(other.recv(65536))


def test_what_a_connection_carries_is_counted_though_the_io_of_the_process_is_not() -> None:
    with connection() as (one, other):
        before = procfs.pulse(os.getpid(), network=True)
        if before.network_bytes is None:
            pytest.skip("this kernel does not tell the bytes of connections")
        carry(one, other, 50_000)
        after = procfs.pulse(os.getpid(), network=True)
    assert after.network_bytes is not None
    assert after.network_bytes - before.network_bytes >= 50_000


def test_it_is_not_asked_for_unless_wanted() -> None:
    assert procfs.pulse(os.getpid()).network_bytes is None


def test_bytes_that_the_other_end_has_not_taken_are_unsent() -> None:
    with connection() as (one, _):
        one.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                one.send(b"x" * 65536)
        assert sample_process(os.getpid()).unsent_bytes > 0


def test_a_kernel_that_refuses_is_an_unknown_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError("netlink")

    with connection():
        monkeypatch.setattr(socket, "socket", refuse)
        assert tcp_bytes.network_bytes((os.getpid(),)) is None


def test_an_answer_that_is_an_error_is_raised_by_its_name() -> None:
    answer = struct.pack("=IHHIIi", 20, 2, 0, 0, 0, -1)
    with pytest.raises(PermissionError):
        tcp_bytes._read(answer, {1}, [])


def test_a_process_that_is_gone_has_carried_nothing() -> None:
    assert tcp_bytes.network_bytes((2**22 + 7,)) == 0
