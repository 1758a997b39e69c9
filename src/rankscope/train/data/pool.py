"""Processes that encode side by side, their answers given in the order of the questions."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

import msgspec

import rankscope
from rankscope.errors import DataError, RankscopeError
from rankscope.train.data.worker import Answer, Setup, Work, receive, send

# Python looks into the current folder first, where a file may be called as a library is.
_START = (
    "import sys; sys.path[:] = filter(None, sys.path); from rankscope.train.data.worker import main; sys.exit(main())"
)
AHEAD = 2
"""Pieces of work that a process has at a time: one at hand, one waiting."""


class Pool:
    """Use as a context manager: the processes end with it."""

    def __init__(self, setup: Setup, workers: int) -> None:
        self._members = [_Member(setup) for _ in range(workers)]

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self._members:
            member.stop()

    def encode(self, tasks: Iterator[Work]) -> Iterator[Answer]:
        """At most AHEAD pieces of work per process are under way, so memory does not grow with the corpus. Raises
        DataError with a worker's own words."""
        waiting: deque[_Member] = deque()
        for task in tasks:
            while (member := self._freest()) is None:
                yield waiting.popleft().answer()
            member.ask(task)
            waiting.append(member)
        while waiting:
            yield waiting.popleft().answer()

    def _freest(self) -> _Member | None:
        member = min(self._members, key=lambda each: each.asked)
        return member if member.asked < AHEAD else None


class _Member:
    """One process, and the thread that takes its answers so that it never waits for us."""

    def __init__(self, setup: Setup) -> None:
        # One thread each: the processes are the parallelism. The package must be found whatever the current folder.
        source = str(Path(rankscope.__file__).resolve().parent.parent)
        paths = os.environ.get("PYTHONPATH", "")
        environment = {
            **os.environ,
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([source, *([paths] if paths else [])]),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._tasks, answers = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        self._answers: queue.Queue[Answer | None] = queue.Queue()
        self._thread = threading.Thread(target=self._listen, args=(answers,), daemon=True)
        self._thread.start()
        self.asked = 0
        self._send(setup)

    def ask(self, task: Work) -> None:
        self.asked += 1
        self._send(task)

    def answer(self) -> Answer:
        found = self._answers.get()
        self.asked -= 1
        if found is None:
            raise self._ended()
        if found.error is not None:
            raise DataError(found.error)
        return found

    def stop(self) -> None:
        """Also in the middle of a piece of work, whose answer nobody wants any more."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._thread.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue

    def _send(self, message: object) -> None:
        try:
            send(self._tasks, message)
        except BrokenPipeError:
            raise self._ended() from None

    def _listen(self, answers: BinaryIO) -> None:
        while (content := receive(answers)) is not None:
            self._answers.put(msgspec.msgpack.decode(content, type=Answer))
        self._answers.put(None)

    def _ended(self) -> RankscopeError:
        code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        hint = ": perhaps there is too little memory; write a smaller data.workers" if code == -9 else ""
        return RankscopeError(f"a process that encodes text {how}{hint}")
