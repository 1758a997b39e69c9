"""Ports for jobs that meet at one: tests run side by side, and no two of them may get the same."""

from __future__ import annotations

import os
import random
import socket

_CHOICE = random.Random(os.getpid())


def free_port() -> int:
    """Nobody listens on it, and the system, which hands out higher ones, gives it to nobody before it is used."""
    while True:
        port = _CHOICE.randrange(15000, 29000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
