"""A receiver of notices on this machine: one that answers, one that refuses, one that never says a word."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Got:
    path: str
    headers: dict[str, str]
    body: Any


class Receiver:
    def __init__(self, address: str, got: list[Got]) -> None:
        self.address = address
        self.got = got

    def at(self, path: str) -> list[Got]:
        return [each for each in self.got if each.path == path]


@contextmanager
def receiver(*, answer: int | None = 200) -> Iterator[Receiver]:
    """`answer` None: connections are taken and requests are read, and nothing ever comes back."""
    got: list[Got] = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(Got(self.path, dict(self.headers.items()), json.loads(content)))
            if answer is None:
                over.wait()
                return
            self.send_response(answer)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield Receiver(f"http://127.0.0.1:{server.server_address[1]}", got)
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()
