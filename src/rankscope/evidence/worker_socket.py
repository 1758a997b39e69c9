"""Torch's worker server: asks a rank for its flight record over its socket."""

from __future__ import annotations

import http.client
import re
import socket
import time
from pathlib import Path

from rankscope.errors import EvidenceError
from rankscope.evidence import flight, pages

# Builds for NCCL keep its collectives in a recorder of their own, and leave the general one empty.
_HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")
_HAS_ENTRIES = re.compile(rb'"entries"\s*:\s*\[\s*\{')
_MAX_ANSWER = 256 * 2**20
_LEAVING_S = 2.0


def read_worker_socket(path: str, *, timeout_s: float = 3.0) -> bytes:
    """The flight record of a rank as JSON, asked from torch's worker server, without its GIL or a pause.

    Raises EvidenceError, with the reason, when there is no answer within the time.
    """
    deadline = time.monotonic() + timeout_s
    answers: list[bytes] = []
    try:
        for handler in _HANDLERS:
            answer = _post(path, handler, deadline)
            if answer is not None:
                answers.append(answer)
    except (OSError, http.client.HTTPException) as error:
        if not answers:
            why = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise EvidenceError(f"the worker socket {path} gave no flight record: {why}") from error
    if not answers:
        raise EvidenceError(f"the worker socket {path} knows none of {', '.join(_HANDLERS)}")
    filled = [answer for answer in answers if _HAS_ENTRIES.search(answer)]
    return filled[-1] if filled else answers[0]


def read_recorder(page: Path | None) -> flight.FlightRecord | str:
    """What the rank with this page has recorded, or why it cannot be had."""
    if page is None:
        return "no probe in the process"
    path = page.with_suffix("").with_name(page.stem + ".torch.sock")
    if not path.exists():
        return "the process group is not set up, or this torch has no worker server"
    if _just_leaving(page):
        return "the process is ending: its worker server is no longer asked"
    try:
        return flight.parse_flight_json(read_worker_socket(str(path)))
    except EvidenceError as error:
        return str(error)


def _just_leaving(page: Path) -> bool:
    """On its way out since a moment: C++ takes down what the server stands on, and an answer could crash the process.

    One that stays in that state hangs there, and is asked.
    """
    try:
        progress = pages.read_page(page, newest_calls=0).progress
    except EvidenceError:
        return False
    return progress.finalizing and time.time() - progress.stage_since < _LEAVING_S


def _post(path: str, handler: str, deadline: float) -> bytes | None:
    """The answer's body; None when the server does not know the handler."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(_left(deadline))
        connection.sock.connect(path)
        connection.request("POST", f"/handler/{handler}")
        channel = connection.sock
        response = connection.getresponse()
        parts: list[bytes] = []
        size = 0
        while True:
            # Each part has only the time that is left: a server that dribbles cannot hold us.
            channel.settimeout(_left(deadline))
            part = response.read1(1 << 16)
            if not part:
                break
            parts.append(part)
            size += len(part)
            if size > _MAX_ANSWER:
                raise http.client.HTTPException(f"the answer is larger than {_MAX_ANSWER} bytes")
        body = b"".join(parts)
    finally:
        connection.close()
    if response.status == http.client.NOT_FOUND:
        return None
    if response.status != http.client.OK:
        raise http.client.HTTPException(f"{handler} answered {response.status}: {body[:200]!r}")
    return body


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
