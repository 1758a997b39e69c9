"""A door at every launcher: whoever knocks learns whether the launcher is alive, frozen, gone or out of reach.

A silent peer can be told apart no better: the kernel of a living machine refuses a connection to a process that has
ended, accepts one for a process that is frozen, and a machine that is down or cut off says nothing.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Literal

GREETING = b"rankscope is here\n"
Answer = Literal["alive", "frozen", "gone", "unreachable"]


class Door:
    """Listens until closed; says one line to everyone and reads nothing."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind((address, 0))
        self._socket.listen(64)
        self.address = address
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, name="rankscope-door", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                visitor, _ = self._socket.accept()
            except OSError:
                return  # closed
            with visitor, suppress(OSError):  # the visitor may be gone already
                visitor.sendall(GREETING)

    def close(self) -> None:
        with suppress(OSError):  # wakes the accept
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def knock(address: str, port: int, limit_s: float = 3.0) -> Answer:
    """How the launcher behind that door is."""
    try:
        with socket.create_connection((address, port), timeout=limit_s) as visitor:
            visitor.settimeout(limit_s)
            try:
                return "alive" if visitor.recv(len(GREETING)) else "gone"
            except TimeoutError:
                return "frozen"
            except ConnectionError:
                return "gone"
    except ConnectionRefusedError:
        return "gone"
    except OSError:
        return "unreachable"
