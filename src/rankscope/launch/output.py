"""Carries what ranks print to the console and to files: whole lines, one prefix each, nothing torn."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from rankscope.launch import bars as bars_in_place
from rankscope.launch.after_stop import TracebackFilter
from rankscope.launch.bars import Bars
from rankscope.launch.lines import Cut, LineCutter
from rankscope.launch.merging import HeldLine, Merger
from rankscope.launch.sinks import Console, LogFile
from rankscope.report.screen import Screen
from rankscope.report.words.phrases import rank_list
from rankscope.terminal_text import harmless_bytes

Key = tuple[int, str]
"""Local rank and `stdout` or `stderr`."""

Name = tuple[str, int]
"""What is said of a rank before its lines, in two parts: `R` and 3. Ranks with names can share a line: `R0-3:`."""

_READ = 64 * 1024
_PIPE_BYTES = 1 << 20
_ATOMIC_WRITE = 4096
_PROGRESS_EVERY_S = 5.0
_STOPS_KNOWN_S = 0.5
_TAIL_LINES = 400
_TAIL_LINE_BYTES = 4096


@dataclass(eq=False, slots=True)
class _Stream:
    """One opening of a key: a pipe, and what is known of its output so far."""

    key: Key
    prefix: bytes
    name: Name | None
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
    after_stop: TracebackFilter | None = None
    """Once its rank was told to stop."""


@dataclass(frozen=True, slots=True)
class _Copy:
    needles: tuple[bytes, ...]
    file: LogFile


class OutputPump:
    """Hands out paths that ranks write to, and reads them all in one thread until `finish`.

    A console that blocks holds the ranks back once their pipes are full; `blocked_s` tells that from a hang.
    Lines for which `drop` is true reach neither console nor file. With `merge`, lines that several ranks print within a
    moment are shown once. On a `screen`, progress bars stay in place.
    """

    def __init__(
        self,
        stdout: BinaryIO,
        stderr: BinaryIO,
        *,
        drop: Callable[[bytes], bool] | None = None,
        merge: bool = False,
        screen: Screen | None = None,
    ) -> None:
        self._consoles = {"stdout": Console(stdout, "stdout", screen), "stderr": Console(stderr, "stderr", screen)}
        self._bars = Bars(screen) if screen is not None else None
        self._merger = Merger() if merge else None
        self._names: dict[int, Name] = {}
        self._told_to_stop: deque[int] = deque()
        self._stops_known = threading.Event()
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

    def open(self, key: Key, prefix: str, file: Path | None, console: bool, name: Name | None = None) -> str:
        """A path for this process to open for writing. The same key may be opened again after a restart."""
        if self._stop_at is not None:
            raise RuntimeError("the output pump has finished")
        self.release(key)
        log = LogFile(file) if file is not None else None
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_fd, False)
        _enlarge(write_fd)
        target = self._consoles[key[1]] if console else None
        stream = _Stream(key, prefix.encode(), name, log, target, self._copies[key[1]], read_fd, write_fd)
        with self._lock:
            if name is not None:
                self._names[key[0]] = name
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

    def told_to_stop(self, local_ranks: Sequence[int]) -> None:
        """We are about to signal these ranks: tracebacks that they print from now on are kept in their files only.

        Returns when what they had printed before is read, or after a moment where the console blocks.
        """
        self._stops_known.clear()
        self._told_to_stop.extend(local_ranks)
        with contextlib.suppress(OSError):  # the pump has finished
            os.eventfd_write(self._wake_fd, 1)
            if not self._stopped.is_set():
                self._stops_known.wait(_STOPS_KNOWN_S)

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
        if self._merger is not None:
            self._write_held(self._merger.rest())
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
        woken = False
        for event, _ in self._selector.select(self._until_next()):
            if event.fd == self._wake_fd:
                woken = True
                continue
            stream: _Stream = event.data
            chunk = os.read(stream.read_fd, _READ)
            if chunk:
                self._take(stream, chunk)
            else:
                self._end(stream)
        if woken:
            os.eventfd_read(self._wake_fd)
            self._heed_wishes()
        self._write_ready()

    def _heed_wishes(self) -> None:
        """New streams are read from the next turn on, and only then counts that their ranks were told to stop: what
        they had printed before comes first."""
        if self._new:
            while self._new:
                stream = self._new.popleft()
                self._reading.add(stream)
                self._selector.register(stream.read_fd, selectors.EVENT_READ, stream)
            os.eventfd_write(self._wake_fd, 1)
            return
        while self._told_to_stop:
            local_rank = self._told_to_stop.popleft()
            for stream in self._reading:
                if stream.key[0] == local_rank and stream.after_stop is None:
                    stream.after_stop = TracebackFilter()
        self._stops_known.set()

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
        if self._bars is not None:
            self._bars.take_away(stream.key)
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
            bars = self._bars_of(stream)
            if bars is not None:
                bars.take_away(stream.key)
            elif texts and texts[0] == stream.shown_state:
                del texts[0]  # The bar's last state is on the console already.
            stream.shown_state = None
        self._show(stream, texts)

    def _show(self, stream: _Stream, texts: list[bytes]) -> None:
        """Whole lines, several to a write as long as a pipe takes them in one piece."""
        if stream.console is None:
            return
        lines = []
        for text in texts:
            if stream.after_stop is not None and stream.after_stop.is_echo(text):
                continue
            shown = harmless_bytes(text)
            line = stream.prefix + shown + b"\n"
            for copy in stream.copies:
                if any(needle in text for needle in copy.needles):
                    copy.file.write(line)
            if self._merger is None or stream.name is None:
                lines.append(line)
            else:
                self._merger.add(stream.key[0], stream.key[1], shown, time.monotonic())
        _write_in_batches(stream.console, lines)
        self._write_ready()

    def _write_ready(self) -> None:
        if self._merger is not None and self._merger.next_due is not None:
            everybody = len({stream.key[0] for stream in self._reading if stream.console is not None})
            self._write_held(self._merger.ready(time.monotonic(), everybody))

    def _write_held(self, held: list[HeldLine]) -> None:
        for target, lines in itertools.groupby(held, key=lambda line: line.target):
            _write_in_batches(self._consoles[target], [self._named(line) + line.text + b"\n" for line in lines])

    def _named(self, line: HeldLine) -> bytes:
        names = [self._names[owner] for owner in line.owners]
        numbers = rank_list((number for _, number in names), most=len(names)).replace(", ", ",")
        return f"{names[0][0]}{numbers}:".encode()

    def _show_state(self, stream: _Stream) -> None:
        state = stream.cutter.state
        now = time.monotonic()
        if not state or not state.strip() or state == stream.shown_state or now < stream.state_due:
            return
        bars = self._bars_of(stream)
        stream.state_due = now + (_PROGRESS_EVERY_S if bars is None else bars_in_place.EVERY_S)
        stream.shown_state = state
        if bars is None:
            self._show(stream, [state])
        else:
            bars.show(stream.key, (stream.prefix + state).decode("utf-8", "replace"))

    def _bars_of(self, stream: _Stream) -> Bars | None:
        return self._bars if stream.console is not None and stream.console.on_screen else None

    def _until_next(self) -> float | None:
        """Shows the progress states that are due; returns when the next one will be, or a line that is held."""
        waits = []
        due = self._merger.next_due if self._merger is not None else None
        if due is not None:
            waits.append(max(0.0, due - time.monotonic()))
        for stream in self._reading:
            self._show_state(stream)
            if stream.cutter.state not in (None, b"", stream.shown_state):
                waits.append(max(0.05, stream.state_due - time.monotonic()))
        return min(waits, default=None)


def _write_in_batches(console: Console, lines: list[bytes]) -> None:
    batch = b""
    for line in lines:
        if batch and len(batch) + len(line) > _ATOMIC_WRITE:
            console.write(batch)
            batch = b""
        batch += line
    if batch:
        console.write(batch)


def _enlarge(fd: int) -> None:
    """A larger pipe lets a rank print on while the console is slow; the system may refuse."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        return  # Over the user's limit for pipe memory: the usual size works too.
