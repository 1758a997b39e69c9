"""A small thread that answers what only Python itself knows: exceptions being handled, and stacks without py-spy.

It is started when the process joins a process group, sleeps in accept() and costs nothing until asked. It is a bare
thread, so that programs which count `threading.enumerate()` see what they would see without us.
"""

from __future__ import annotations

import _thread
import os
import socket
import sys
from types import FrameType
from typing import Any

from rankscope.probe.page import SEPARATOR, Page
from rankscope.probe.raised import chain_of, text_of
from rankscope.probe.sites import absolute, traceback_frames

RECORD = "\x1e"
_started: list[int] = []


def start(page: Page) -> None:
    """Once per process; the socket lies beside the page."""
    if os.getpid() in _started:
        return
    _started.append(os.getpid())
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(page.path.removesuffix(".page") + ".sock")
    server.listen(4)
    _thread.start_new_thread(_serve, (server, page))


def _serve(server: socket.socket, page: Page) -> None:
    own = _thread.get_ident()
    about = os.fstat(server.fileno())
    while True:
        try:
            if not os.path.samestat(os.fstat(server.fileno()), about):
                raise OSError("its descriptor is the program's by now")
            connection, _ = server.accept()
        except OSError as error:
            server.detach()  # the number may be that of a file of the program: it is not ours to close
            page.error(f"the listener ended: {error}")
            return
        try:
            with connection:
                connection.settimeout(2.0)
                connection.sendall(_answer(own).encode("utf-8", "replace"))
        except OSError as error:
            page.error(f"an answer could not be sent: {error}")


def _answer(own: int) -> str:
    records = []
    main = _main_ident()
    for ident, error in _handled_exceptions().items():
        if ident == own:
            continue
        frames = traceback_frames(error.__traceback__)
        thread = "MainThread" if ident == main else str(ident)
        records.append(_record("X", thread, type(error).__name__, text_of(error)[:4096], frames))
        records += (_record("C", led, name, text[:2048], earlier) for led, name, text, earlier in chain_of(error))
    for ident, frame in sys._current_frames().items():
        if ident != own:
            thread = "MainThread" if ident == main else str(ident)
            records.append(_record("S", thread, "", "", _stack(frame)))
    return RECORD.join(records)


def _handled_exceptions() -> dict[int, BaseException]:
    """Per thread, the exception being handled: Python 3.11 gives the exc_info triple, later ones the exception."""
    found: dict[int, BaseException] = {}
    current: dict[int, Any] = sys._current_exceptions()
    for ident, value in current.items():
        error = value[1] if isinstance(value, tuple) else value
        if isinstance(error, BaseException):
            found[ident] = error
    return found


def _main_ident() -> int | None:
    threading = sys.modules.get("threading")
    return None if threading is None else threading.main_thread().ident


def _stack(frame: FrameType | None) -> list[tuple[str, int, str]]:
    frames: list[tuple[str, int, str]] = []
    while frame is not None and len(frames) < 60:
        frames.append((absolute(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames


def _record(kind: str, thread: str, name: str, message: str, frames: list[tuple[str, int, str]]) -> str:
    parts = [kind, thread, name, message]
    for file, line, function in frames:
        parts += [file, str(line), function]
    return SEPARATOR.join(part.replace(SEPARATOR, " ").replace(RECORD, " ") for part in parts)
