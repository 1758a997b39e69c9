"""What a person would see: the few things that a terminal does with what we write to it."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import time
from collections.abc import Mapping
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

_PIECE = re.compile(r"\x1b\[(\d*)([A-Za-z])|\r|\n|[^\x1b\r\n]+|\x1b.")


class Picture:
    """Lines from the first to the last, however far they have scrolled; a cursor that moves up, and erases below."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = self._column = 0

    def draw(self, text: str) -> None:
        for match in _PIECE.finditer(text):
            piece, what = match.group(), match.group(2)
            if piece == "\r":
                self._column = 0
            elif piece == "\n":
                self._row += 1
                if self._row == len(self.lines):
                    self.lines.append("")
            elif what == "A":
                self._row = max(0, self._row - int(match.group(1) or 1))
            elif what == "J":
                del self.lines[self._row + 1 :]
                self.lines[self._row] = self.lines[self._row][: self._column]
            elif what == "m":
                continue
            elif piece.startswith("\x1b"):
                raise AssertionError(f"no business of ours: {piece!r}")
            else:
                line = self.lines[self._row].ljust(self._column)
                self.lines[self._row] = line[: self._column] + piece + line[self._column + len(piece) :]
                self._column += len(piece)


def run_on_terminal(
    command: list[str], cwd: Path, env: Mapping[str, str], timeout_s: float = 90.0, columns: int = 100
) -> tuple[int, str, list[list[str]]]:
    """Exit code, everything that was written, and the picture after each piece of it."""
    leader, follower = pty.openpty()
    ioctl(follower, TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", **env}
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    written, pictures, picture = "", [], Picture()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not select.select([leader], [], [], 0.2)[0]:
            continue
        try:
            data = os.read(leader, 65536)
        except OSError:  # the last process that had it is gone
            break
        if not data:
            break
        text = data.decode(errors="replace")
        written += text
        picture.draw(text)
        pictures.append(list(picture.lines))
    os.close(leader)
    return process.wait(10.0), written, pictures
