"""Nothing that a job starts outlives it, whichever of its processes is killed.

    guard     the pid the user started: waits, forwards signals, returns the exit code
      warden    in a session of its own, holds no file of the user
        launcher  runs main() in the user's process group, so that Ctrl-C and Ctrl-Z work as ever
          ranks     and whatever they start

Guard and warden are child subreapers: an orphan of the job, daemonised or not, becomes a child of one of them
and cannot hide. When the launcher ends, the warden kills what is left. When the guard is killed, the warden
kills all, the launcher included. When the warden is killed, the launcher becomes the guard's child and the
job goes on.

This module imports nothing heavy: two copies of it stay in memory for as long as the job runs.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from rankscope.launch.process_tree import (
    PR_SET_NAME,
    PR_SET_PDEATHSIG,
    become_subreaper,
    die_with_parent,
    end_descendants,
    kill,
    kill_descendants,
    prctl,
    processes,
    reap_all,
    reap_orphans,
)
from rankscope.streams import flush_streams

__all__ = ["become_subreaper", "die_with_parent", "kill_descendants", "reap_orphans", "run_guarded"]

_SI_KERNEL = 0x80

_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_HEARING_S = 0.1
"""How long a signal is held back to see whether the launcher, in the same group, has had it too."""
_END_S = 5.0


def run_guarded(main: Callable[[], int], clean_up: Callable[[], None] = lambda: None) -> int:
    """Runs `main()` in a child; returns its exit code, 128+N for a signal, once all it started has ended.

    `clean_up` is called when nothing of the job is left, whoever was killed; it may be called twice.

    Call it while the process has one thread and little in memory, and exit with what it returns: signals stay
    blocked. In the child it does not return: the interpreter ends, with the code of `main`.
    """
    flush_streams()
    guard = os.getpid()
    become_subreaper()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Where it came in ignored, exit codes would be lost.
    # An ignored signal stays ignored (nohup, background jobs of scripts): waiting for it would undo that.
    forwarded = {number for number in _FORWARDED if signal.getsignal(number) != signal.SIG_IGN}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*forwarded, signal.SIGCHLD})
    heard, hear = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    told, tell = os.pipe2(os.O_CLOEXEC)
    warden = os.fork()
    if warden == 0:
        launcher = os.fork()
        if launcher:
            os._exit(_warden(guard, launcher, tell, clean_up))
        for fd in (told, tell, heard):
            os.close(fd)
        signal.set_wakeup_fd(hear, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _end(main())
    os.close(hear)
    os.close(tell)
    status, killed = _watch(warden, told, _Forwarder(heard), forwarded)
    more, left = end_descendants(guard, (), _END_S, reap=True)
    clean_up()
    # Signals stay blocked here: a late Ctrl-C must not replace the exit code by a traceback.
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        _say(f"the launcher was killed (SIGKILL); its {killed + len(more)} processes were ended")
    if left:
        _say(f"processes {', '.join(map(str, left))} were sent SIGKILL and have not ended yet")
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end(code: int) -> NoReturn:
    """As the interpreter ends, without tearing it down: a daemon thread that comes back from torch's C++ meanwhile
    would abort the process, and a signal kill it. The last word is said, and the code is what it says."""
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: os._exit(code))
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    flush_streams()
    os._exit(code)


class _Forwarder:
    """Passes the guard's signals on to the launcher, unless the launcher has had the same one by itself.

    The launcher is in the guard's process group: what the terminal, `timeout` or a shell sends to the group
    reaches both. Python's wake-up descriptor tells which signals the launcher has received.
    """

    def __init__(self, heard: int) -> None:
        self._heard = heard
        self._own: set[int] = set()
        """Signals that we sent and whose echo has not come."""

    def forward(self, number: int, launcher: int) -> None:
        deadline = time.monotonic() + _HEARING_S
        while number not in self.echoes():
            wait = deadline - time.monotonic()
            if wait <= 0:
                self._own.add(number)
                kill(launcher, number)
                return
            select.select([self._heard], [], [], wait)

    def echoes(self) -> list[int]:
        """Signals that the launcher has received since the last call and that did not come from here."""
        try:
            numbers = list(os.read(self._heard, 4096))
        except BlockingIOError:
            return []
        if not numbers:  # The launcher has ended, or uses the descriptor for something else.
            time.sleep(_HEARING_S)
        for number in list(numbers):
            if number in self._own:
                self._own.remove(number)
                numbers.remove(number)
        return numbers


def _watch(warden: int, told: int, forwarder: _Forwarder, forwarded: set[signal.Signals]) -> tuple[int, int]:
    """Waits for the end of the job; returns the launcher's wait status and how many were killed after it."""
    launcher = int(_line(told) or 0)
    while True:
        # Stopped and continued inside this wait, Python may report a signal that there is none of: it is passed over.
        event = signal.sigtimedwait({*forwarded, signal.SIGCHLD}, 1.0)
        if event is None:
            forwarder.echoes()
        elif event.si_signo in forwarded:
            # The terminal sends to the whole group: the launcher has it already.
            if event.si_code != _SI_KERNEL and launcher:
                forwarder.forward(event.si_signo, launcher)
            continue
        ended = reap_all()
        if warden in ended and (report := _line(told)):
            status, killed = map(int, report.split())
            return status, killed
        if launcher in ended:
            return ended[launcher], 0
        if warden in ended and processes().get(launcher, (0, ""))[0] != os.getpid():
            # Both are gone and nobody is left to ask.
            return signal.SIGKILL, 0


def _warden(guard: int, launcher: int, tell: int, clean_up: Callable[[], None]) -> int:
    """Kills the rest of the job when the launcher ends, and the launcher with it when the guard is gone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    become_subreaper()
    prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)  # Wakes the wait below; whether the guard lives is asked of getppid.
    _leave_terminal(keep=tell)
    _rename(f"job-warden (ends with process {guard})")
    _report(tell, f"{launcher}\n")
    status = None
    while status is None and os.getppid() == guard:
        status = reap_all().get(launcher)
        if status is None:
            signal.sigtimedwait({signal.SIGCHLD, signal.SIGUSR1}, 1.0)
    killed, _ = end_descendants(os.getpid(), (), _END_S, reap=True)
    clean_up()
    if status is not None:
        _report(tell, f"{status} {len(killed)}\n")
    return 0


def _leave_terminal(keep: int) -> None:
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd != keep:
            try:
                os.close(fd)
            except OSError:
                continue  # The descriptor of the listing itself.


def _rename(title: str) -> None:
    """Gives the process another command line: `pkill -9 -f` of the job's name leaves someone to clean up."""
    prctl(PR_SET_NAME, ctypes.create_string_buffer(title.partition(" ")[0].encode()))
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)
        text = title.encode()[: end - start - 1]
        ctypes.memmove(start, text, len(text))


def _line(fd: int) -> str:
    text = b""
    while not text.endswith(b"\n") and (byte := os.read(fd, 1)):
        text += byte
    return text.decode()


def _report(fd: int, text: str) -> None:
    try:
        os.write(fd, text.encode())
    except BrokenPipeError:
        return  # The guard was killed: nobody is left to tell.


def _say(text: str) -> None:
    try:
        os.write(2, f"rankscope: {text}\n".encode())
    except OSError:
        return  # The terminal is gone; the exit code still tells.
