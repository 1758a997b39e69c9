"""A server for a few readers: GET alone, bounded in everything, and nothing of it can hold its process up."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

_MOST_AT_ONCE = 8
_REQUEST_BYTES = 16 * 1024
_READ_S = 3.0
_SEND_S = 10.0
_HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Connection", "close"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    kind: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class SmallServer:
    """`answer` gets the path of each request, and gives None for what there is not; `sent` hears of what has left."""

    def __init__(
        self, bind: tuple[str, int], answer: Callable[[str], Answer | None], sent: Callable[[Answer], None]
    ) -> None:
        """Listens at once; raises OSError where it cannot."""
        self._answer = answer
        self._sent = sent
        family = socket.AF_INET6 if ":" in bind[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(bind)
            self._socket.listen(_MOST_AT_ONCE)
        except OSError:
            self._socket.close()
            raise
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._room = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._closed = False

    def start(self) -> None:
        threading.Thread(target=self._accept, name="rankscope-page", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):  # nobody was connected
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if not self._closed:
                    time.sleep(0.1)  # no descriptor was left, or the peer had gone
                continue
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="rankscope-reader", daemon=True).start()
            except RuntimeError:  # no more threads for this user: the job needs them more
                connection.close()
                self._room.release()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._exchange(connection)
        except OSError:
            return  # the reader went away, or took too long
        finally:
            self._room.release()

    def _exchange(self, connection: socket.socket) -> None:
        method, path = _request(connection)
        connection.settimeout(_SEND_S)
        if method != "GET":
            status = "400 Bad Request" if not method else "405 Method Not Allowed"
            connection.sendall(_response(status, Answer("text/plain", b"", (("Allow", "GET"),))))
            return
        try:
            answer = self._answer(path)
        except Exception as error:  # noqa: BLE001  a fault of ours is the reader's to see, and nobody else's
            text = f"rankscope could not make this page: {type(error).__name__}\n"
            connection.sendall(_response("500 Internal Server Error", Answer("text/plain", text.encode())))
            return
        if answer is None:
            connection.sendall(_response("404 Not Found", Answer("text/plain", b"")))
            return
        connection.sendall(_response("200 OK", answer))
        connection.shutdown(socket.SHUT_WR)
        self._sent(answer)


def _request(connection: socket.socket) -> tuple[str, str]:
    """Method and path; nothing for what is no request, or too long, or too slow."""
    deadline, data = time.monotonic() + _READ_S, b""
    while b"\r\n\r\n" not in data:
        left = deadline - time.monotonic()
        if left <= 0 or len(data) > _REQUEST_BYTES:
            return "", ""
        connection.settimeout(left)
        piece = connection.recv(4096)
        if not piece:
            return "", ""
        data += piece
    words = data.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        return "", ""
    return words[0], words[1].partition("?")[0]


def _response(status: str, answer: Answer) -> bytes:
    headers = [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body))), *_HEADERS, *answer.headers]
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1") + answer.body
