"""Carries what ranks print to the console and to files: whole lines, one prefix each, nothing torn."""

from __future__ import annotations

import fcntl
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from rankscope.launch.lines import Cut, LineCutter, without_cursor_moves
from rankscope.launch.sinks import Console, LogFile

Key = tuple[int, str]
"""Local rank and `stdout` or `stderr`."""

_READ = 64 * 1024
_PIPE_BYTES = 1 << 20
_ATOMIC_WRITE = 4096
_PROGRESS_EVERY_S = 5.0
_TAIL_LINES = 400
_TAIL_LINE_BYTES = 4096


@dataclass(eq=False, slots=True)
class _Stream:
    """One opening of a key: a pipe, and what is known of its output so far."""

    prefix: bytes
    file: LogFile | None
    console: Console | None
    copies: list[_Copy]
    read_fd: int
    write_fd: int | None
    cutter: LineCutter = field(default_factory=LineCutter)
    tail: deque[bytes] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    last_output_at: float | None = None
    shown_state: bytes | None = None
    """The progress bar's state that the console has; None once its line is finished."""
    state_due: float = 0.0


@dataclass(frozen=True, slots=True)
class _Copy:
    needles: tuple[bytes, ...]
    file: LogFile


class OutputPump:
    """Hands out paths that ranks write to, and reads them all in one thread until `finish`.

    A console that blocks holds the ranks back once their pipes are full; `blocked_s` tells that from a hang.
    Lines for which `drop` is true reach neither console nor file.
    """

    def __init__(self, stdout: BinaryIO, stderr: BinaryIO, *, drop: Callable[[bytes], bool] | None = None) -> None:
        self._consoles = {"stdout": Console(stdout, "stdout"), "stderr": Console(stderr, "stderr")}
        self._copies: dict[str, list[_Copy]] = {"stdout": [], "stderr": []}
        self._drop = drop
        self._streams: dict[Key, _Stream] = {}
        self._reading: set[_Stream] = set()
        self._files: list[LogFile] = []
        self._faults: list[str] = []
        self._lock = threading.Lock()  # Never held while writing: finish() must not wait for a blocked console.
        self._selector = selectors.DefaultSelector()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._new: deque[_Stream] = deque()
        self._stop_at: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankscope-output", daemon=True)
        self._thread.start()

    def open(self, key: Key, prefix: str, file: Path | None, console: bool) -> str:
        """A path for this process to open for writing. The same key may be opened again after a restart."""
        if self._stop_at is not None:
            raise RuntimeError("the output pump has finished")
        self.release(key)
        log = LogFile(file) if file is not None else None
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_fd, False)
        _enlarge(write_fd)
        target = self._consoles[key[1]] if console else None
        stream = _Stream(prefix.encode(), log, target, self._copies[key[1]], read_fd, write_fd)
        with self._lock:
            self._streams[key] = stream
            self._new.append(stream)
            if log is not None:
                self._files.append(log)
        os.eventfd_write(self._wake_fd, 1)
        return f"/proc/self/fd/{write_fd}"

    def release(self, key: Key) -> None:
        """The path is not needed any more: the stream ends when the last process that opened it ends."""
        with self._lock:
            stream = self._streams.get(key)
            if stream is not None and stream.write_fd is not None:
                os.close(stream.write_fd)
                stream.write_fd = None

    def add_copy(self, stream: Literal["stdout", "stderr"], needles: Sequence[str], file: Path) -> None:
        """Console lines that contain one of the needles are appended to the file too, prefix included."""
        log = LogFile(file)
        with self._lock:
            self._files.append(log)
        self._copies[stream].append(_Copy(tuple(needle.encode() for needle in needles), log))

    def tail(self, key: Key, lines: int = 80) -> tuple[str, ...]:
        """The newest lines of the key's output, an unfinished last one included."""
        with self._lock:
            stream = self._streams.get(key)
            if stream is None or lines <= 0:
                return ()
            found = list(stream.tail)
            unfinished = stream.cutter.unfinished[-_TAIL_LINE_BYTES:]
        if unfinished.strip():
            found.append(unfinished)
        return tuple(line.decode("utf-8", "replace") for line in found[-lines:])

    def last_output_at(self, key: Key) -> float | None:
        """When the key's newest output was read, in seconds since the epoch; None before the first."""
        stream = self._streams.get(key)
        return None if stream is None else stream.last_output_at

    @property
    def blocked_s(self) -> float:
        """For how long the console has not taken what was written to it; ranks may be waiting for that."""
        return max(console.blocked_s for console in self._consoles.values())

    @property
    def problems(self) -> tuple[str, ...]:
        """The first failure of each file and console, and any fault of the pump itself."""
        with self._lock:
            sinks: list[Console | LogFile] = [*self._consoles.values(), *self._files]
            return (*(sink.problem for sink in sinks if sink.problem), *self._faults)

    def finish(self, timeout_s: float) -> None:
        """Carries out what was written so far, then stops; returns in time even when the console blocks."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + timeout_s
            os.eventfd_write(self._wake_fd, 1)
        self._stopped.wait(timeout_s)

    def _run(self) -> None:
        while not self._is_over():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001
                # Ranks block for ever on a pipe that nobody reads: whatever the fault is, go on reading.
                with self._lock:
                    self._faults.append(f"output pump: {type(error).__name__}: {error}")
                    del self._faults[10:]
                time.sleep(0.05)
        for stream in list(self._reading):
            self._end(stream)
        for file in self._files:
            file.close()
        for key in list(self._streams):
            self.release(key)
        self._selector.close()
        os.close(self._wake_fd)
        self._stopped.set()

    def _is_over(self) -> bool:
        if self._stop_at is None or self._new:
            return False
        if time.monotonic() >= self._stop_at:
            return True
        return all(event.fd == self._wake_fd for event, _ in self._selector.select(0))

    def _turn(self) -> None:
        """One round over all pipes that have something."""
        for event, _ in self._selector.select(self._until_next_state()):
            if event.fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)
                continue
            stream: _Stream = event.data
            chunk = os.read(stream.read_fd, _READ)
            if chunk:
                self._take(stream, chunk)
            else:
                self._end(stream)
        while self._new:
            stream = self._new.popleft()
            self._reading.add(stream)
            self._selector.register(stream.read_fd, selectors.EVENT_READ, stream)

    def _take(self, stream: _Stream, chunk: bytes) -> None:
        if stream.file is not None and self._drop is None:
            stream.file.write(chunk)
        with self._lock:
            stream.last_output_at = time.time()
            cuts = list(stream.cutter.feed(chunk))
        self._carry(stream, cuts)
        if len(chunk) < _READ:  # Otherwise the state may be cut in the middle, and more is coming at once.
            self._show_state(stream)

    def _end(self, stream: _Stream) -> None:
        self._selector.unregister(stream.read_fd)
        os.close(stream.read_fd)
        self._reading.discard(stream)
        with self._lock:
            cuts = list(stream.cutter.end())
        self._carry(stream, cuts)
        if stream.file is not None:
            stream.file.close()

    def _carry(self, stream: _Stream, cuts: list[Cut]) -> None:
        if self._drop is not None:
            drop = self._drop
            cuts = [cut for cut in cuts if cut.text is None or not drop(cut.text)]
            if stream.file is not None:
                stream.file.write(b"".join(cut.raw for cut in cuts))
        texts = [cut.text for cut in cuts if cut.text is not None]
        with self._lock:
            stream.tail.extend(text[:_TAIL_LINE_BYTES] for text in texts[-_TAIL_LINES:])
        if stream.shown_state is not None and any(cut.text is not None or cut.raw.endswith(b"\n") for cut in cuts):
            if texts and texts[0] == stream.shown_state:
                del texts[0]  # The bar's last state is on the console already.
            stream.shown_state = None
        self._show(stream, texts)

    def _show(self, stream: _Stream, texts: list[bytes]) -> None:
        """Whole lines, several to a write as long as a pipe takes them in one piece."""
        if stream.console is None:
            return
        batch = b""
        for text in texts:
            line = stream.prefix + without_cursor_moves(text) + b"\n"
            for copy in stream.copies:
                if any(needle in text for needle in copy.needles):
                    copy.file.write(line)
            if batch and len(batch) + len(line) > _ATOMIC_WRITE:
                stream.console.write(batch)
                batch = b""
            batch += line
        if batch:
            stream.console.write(batch)

    def _show_state(self, stream: _Stream) -> None:
        state = stream.cutter.state
        now = time.monotonic()
        if not state or not state.strip() or state == stream.shown_state or now < stream.state_due:
            return
        stream.state_due = now + _PROGRESS_EVERY_S
        stream.shown_state = state
        self._show(stream, [state])

    def _until_next_state(self) -> float | None:
        """Shows the progress states that are due; returns when the next one will be."""
        waits = []
        for stream in self._reading:
            self._show_state(stream)
            if stream.cutter.state not in (None, b"", stream.shown_state):
                waits.append(max(0.05, stream.state_due - time.monotonic()))
        return min(waits, default=None)


def _enlarge(fd: int) -> None:
    """A larger pipe lets a rank print on while the console is slow; the system may refuse."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        return  # Over the user's limit for pipe memory: the usual size works too.
