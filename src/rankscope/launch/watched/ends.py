"""How processes end that are not our children: a launcher of somebody else's waits for them, and tells nobody.

The kernel tells it of a zombie, and since Linux 6.15 of a process that was waited for. Older ones forget: then what the
probe wrote on the process's page stands in.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rankscope.errors import EvidenceError
from rankscope.evidence.pages import read_page, read_work

_INFO = struct.Struct("<QQ11Ii")
"""What the kernel calls pidfd_info: mask, control group, eleven ids, and the wait status last."""
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_EXIT_KNOWN = 1 << 3
_FATAL = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating-point exception": signal.SIGFPE,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}
_DISMISSALS = (-signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT)
_CODE = re.compile(r"(?:sys\.exit|os\._exit|exit|quit)\((.*)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    """Negative for a signal."""
    at: float


class Ends:
    """Follows processes in a thread of its own, so as to be there when one ends."""

    def __init__(self) -> None:
        self._ended: dict[int, Ended] = {}
        self._pages: dict[int, Path] = {}
        self._descriptors: dict[int, int] = {}
        self._poll = select.poll()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._woken, select.POLLIN)
        self._news = threading.Condition()
        threading.Thread(target=self._run, name="rankscope-ends", daemon=True).start()

    def follow(self, pid: int, page: Path) -> None:
        """From now on; one that has ended already is known by its page."""
        with self._news:
            if pid in self._pages:
                return
            self._pages[pid] = page
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            self._note(pid, None)
            return
        self._descriptors[descriptor] = pid
        self._poll.register(descriptor, select.POLLIN)
        os.eventfd_write(self._woken, 1)

    def of(self, pid: int) -> Ended | None:
        """None while it lives."""
        with self._news:
            return self._ended.get(pid)

    def look_for_failed_work(self) -> None:
        """A process whose work an exception has ended counts as ended, though it may stay."""
        with self._news:
            living = [(pid, page) for pid, page in self._pages.items() if pid not in self._ended]
        for pid, page in living:
            if code_of_work(page) == 1:
                with self._news:
                    self._ended.setdefault(pid, Ended(1, time.time()))
                    self._news.notify_all()

    def wait(self, seconds: float) -> None:
        """Until a process that is followed ends, or `wake`, or that time has passed."""
        with self._news:
            self._news.wait(seconds)

    def wake(self) -> None:
        with self._news:
            self._news.notify_all()

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._woken:
                    os.eventfd_read(self._woken)
                    continue
                pid = self._descriptors.pop(descriptor)
                status = _status(pid, descriptor)
                self._poll.unregister(descriptor)
                os.close(descriptor)
                self._note(pid, status)

    def _note(self, pid: int, status: int | None) -> None:
        page = self._pages[pid]
        code = os.waitstatus_to_exitcode(status) if status is not None else code_by_page(page)
        if code > 0 or code in _DISMISSALS:
            worked = code_of_work(page)
            code = code if worked is None else worked
        with self._news:
            self._ended.setdefault(pid, Ended(code, time.time()))
            self._news.notify_all()


def _status(pid: int, descriptor: int) -> int | None:
    """The wait status, as far as the kernel tells."""
    for _ in range(2):  # it may be waited for between the two questions
        status = _status_of_zombie(pid)
        if status is None:
            status = _status_of_gone(descriptor)
        if status is not None:
            return status
    return None


def _status_of_zombie(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[49]) if fields[0] in (b"Z", b"X") else None


def _status_of_gone(descriptor: int) -> int | None:
    asked = bytearray(_INFO.pack(_EXIT_KNOWN, *[0] * 13))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, asked)
    except OSError:
        return None  # an older kernel, which has forgotten it
    mask, *_, status = _INFO.unpack(asked)
    return int(status) if mask & _EXIT_KNOWN else None


def code_by_page(page: Path) -> int:
    """What the probe saw of the end: an exception, an exit and its code, a fatal signal. A process that went without a
    word was killed."""
    try:
        content = read_page(page, newest_calls=0)
    except EvidenceError:
        return -signal.SIGKILL
    said = _CODE.fullmatch(content.progress.exit_note or "")
    if said is not None and (content.progress.finalizing or "os._exit" in content.progress.exit_note):
        return _code_of_argument(said[1])
    if content.progress.finalizing:
        return 1 if any(error.source == "hook" for error in content.exceptions) else 0
    return -_fatal_signal(page.with_suffix(".fatal"))


def code_of_work(page: Path) -> int | None:
    """Of a process that was given work, as Ray's are, and stays when that is done: 0 or 1 where it is. However such a
    process ends then, by a signal or because Ray has gone before it, no work ends with it."""
    try:
        over, failed = read_work(page)
    except EvidenceError:
        return None
    return int(failed) if over or failed else None


def _code_of_argument(text: str) -> int:
    """Of `sys.exit(text)`: nothing is 0, and words are 1."""
    if text in ("None", "False", "0"):
        return 0
    return int(text) & 0xFF if text.lstrip("-").isdigit() else 1


def _fatal_signal(dump: Path) -> int:
    try:
        text = dump.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return next((number for words, number in _FATAL.items() if f"Fatal Python error: {words}" in text), signal.SIGKILL)
