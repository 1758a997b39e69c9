"""Asks NCCL's RAS threads, which every NCCL job since 2.24 has, who launched how much. The job needs no preparation."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

from msgspec.structs import replace

from rankscope.errors import EvidenceError
from rankscope.evidence.communicators import RasLook
from rankscope.evidence.ras_text import parse_answer

DEFAULT_ADDRESS = ("127.0.0.1", 28028)
_QUESTION = b"CLIENT PROTOCOL 2\nTIMEOUT 1\nSET FORMAT json\nVERBOSE STATUS\n"
"""NCCL before 2.28.7 does not know the format, says so, and answers in text."""
_TALK = ("SERVER PROTOCOL", "OK", "ERROR:")
_TRY_S = 2.5
"""For one try: every rank of this machine listens, the kernel chooses one, and it may be the one that is stopped. NCCL
itself waits a second for processes that do not answer it."""
_MOST_BYTES = 32 * 2**20
_TRIES = 6


def address_of(environment: Mapping[str, str]) -> tuple[str, int] | str:
    """Where the RAS threads of a process listen by its environment, or why they do not."""
    if environment.get("NCCL_RAS_ENABLE", "").strip() == "0":
        return "NCCL's RAS is switched off in this job (NCCL_RAS_ENABLE=0)"
    given = environment.get("NCCL_RAS_ADDR", "").strip()
    if not given:
        return DEFAULT_ADDRESS
    host, separator, port = given.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        return f"NCCL_RAS_ADDR={given} is no HOST:PORT"
    return host, int(port)


def ask_job(
    address: tuple[str, int], own_pids: Mapping[int, int], world_size: int, limit_s: float = 4.0
) -> RasLook | str:
    """What NCCL tells of the job with these processes, or why nothing. Never raises, never waits longer than the limit.

    `own_pids`: the pid that each rank of this machine has for itself, to the one it has here; they differ in
    containers. Several jobs may listen at one address, and the kernel chooses who answers: asked until it is this one.
    """
    deadline = time.monotonic() + limit_s
    why = ""
    for _ in range(_TRIES):
        try:
            look = _ask(address, min(deadline, time.monotonic() + _TRY_S))
        except TimeoutError:
            why = f"NCCL's RAS at {address[0]}:{address[1]} gave no answer in time"
            if time.monotonic() >= deadline:
                break
            continue
        except EvidenceError as error:
            return str(error)
        if look.pids() & set(own_pids) or (not look.pids() and look.processes == world_size):
            return _with_pids(look, own_pids)
        why = f"another NCCL job answers at {address[0]}:{address[1]}"
    return why


def _ask(address: tuple[str, int], deadline: float) -> RasLook:
    """Raises EvidenceError, with the reason, when there is no answer that can be read, TimeoutError when none comes."""
    place = f"{address[0]}:{address[1]}"
    try:
        with socket.create_connection(address, timeout=_left(deadline)) as connection:
            connection.sendall(_QUESTION)
            answer = _read(connection, deadline)
    except ConnectionRefusedError as error:
        raise EvidenceError(f"nothing answers at {place}: NCCL before 2.24, or no communicator yet") from error
    except TimeoutError:
        raise
    except OSError as error:
        raise EvidenceError(f"NCCL's RAS at {place} cannot be asked: {error}") from error
    return parse_answer(_without_talk(answer), time.time())


def _read(connection: socket.socket, deadline: float) -> str:
    """Until the other end closes: it does so after the answer."""
    parts: list[bytes] = []
    size = 0
    while True:
        connection.settimeout(_left(deadline))
        part = connection.recv(65536)
        if not part:
            return b"".join(parts).decode(errors="replace")
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES:
            raise EvidenceError(f"NCCL's RAS sent more than {_MOST_BYTES // 2**20} MiB")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _without_talk(answer: str) -> str:
    """Without the lines that answer our first words."""
    lines = answer.splitlines()
    while lines and lines[0].startswith(_TALK):
        lines.pop(0)
    return "\n".join(lines)


def _with_pids(look: RasLook, own_pids: Mapping[int, int]) -> RasLook:
    """With the pids that processes have here instead of those that they have for themselves."""
    if all(inner == outer for inner, outer in own_pids.items()):
        return look
    communicators = tuple(
        replace(
            comm,
            members=tuple(
                replace(member, pid=own_pids.get(member.pid, member.pid)) if member.pid is not None else member
                for member in comm.members
            ),
        )
        for comm in look.communicators
    )
    lost = tuple(replace(gone, pid=own_pids.get(gone.pid, gone.pid)) for gone in look.lost)
    return replace(look, communicators=communicators, lost=lost)
