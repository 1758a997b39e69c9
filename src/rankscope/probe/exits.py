"""How the process ends: the uncaught exception, the line that called sys.exit, the moment it left the program."""

from __future__ import annotations

import atexit
import builtins
import functools
import os
import posix
import sys
import time
from _sitebuiltins import Quitter
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from rankscope.probe import held_memory, raised
from rankscope.probe.imports import ImportWatch
from rankscope.probe.page import EXCEPTION_AT_EXIT, EXCEPTION_OF_THREAD, FINALIZING, Page
from rankscope.probe.sites import Sites, without_ourselves
from rankscope.probe.stages import StageBook

_GLOO_THREAD = "pt_gloo_runloop"
_PATIENCE_S = 0.2
_PAUSE_S = 0.002


def note(page: Page, sites: Sites, book: StageBook, imports: ImportWatch) -> None:
    """Hangs itself into the interpreter's ways out; each does what it did before."""
    noted: list[BaseException] = []
    failures: list[Any] = []
    previous_hook = sys.excepthook
    leave, leave_at_once = sys.exit, os._exit
    quitters = type(getattr(builtins, "exit", None))
    interactive = quitters.__call__

    def record(error: BaseException | None) -> None:
        if error is None or any(error is known for known in noted):
            return
        noted.append(error)
        raised.write(page, error)
        held_memory.note(page, error)

    def leaving(how: str) -> None:
        page.leaving(sites.number(sys._getframe(4)), how)
        handled = sys.exc_info()[1]
        if handled is not None and not isinstance(handled, SystemExit):
            raised.write(page, handled, entry=EXCEPTION_AT_EXIT)

    @functools.wraps(previous_hook)
    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None, /) -> Any:
        _guarded(page, lambda: record(error))
        _guarded(page, lambda: _hide_ourselves(error, set()))
        if isinstance(traceback, TracebackType):  # a program may call us with another one than the exception's own
            traceback = without_ourselves(traceback)
        return previous_hook(kind, error, traceback)

    @functools.wraps(leave)
    def sys_exit(status: Any = None, /) -> NoReturn:
        _guarded(page, lambda: leaving(f"sys.exit({status!r:.80})"))
        # As Python judges it; whether an object of the program's is true is not asked, as that may raise.
        if status is not None and not (isinstance(status, int) and int.__eq__(status, 0)):
            failures.append(status)
        leave(status)

    @functools.wraps(leave_at_once)
    def os_exit(status: int) -> NoReturn:
        _guarded(page, lambda: leaving(f"os._exit({status!r:.80})"))
        leave_at_once(status)

    def quitter(self: Any, code: Any = None) -> NoReturn:
        _guarded(page, lambda: leaving(f"{self.name}({code!r:.80})"))
        interactive(self, code)
        raise SystemExit(code)

    def at_exit() -> None:
        page.raise_flag(FINALIZING)
        page.stage("exiting")
        # A program may have replaced sys.excepthook; the interpreter remembers the exception all the same.
        last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        _guarded(page, lambda: record(last))
        if page.steps and not noted and not failures and not page.not_finite:
            book.training_finished()
        _guarded(page, let_gloo_finish)

    sys.excepthook = hook
    sys.exit = sys_exit
    for home in (os, posix):  # where it is looked up when it is pickled
        vars(home)["_exit"] = os_exit
    if quitters is Quitter:  # exit() and quit(), which are there unless Python runs without its site module
        Quitter.__call__ = functools.wraps(interactive)(quitter)  # type: ignore[method-assign]
    atexit.register(at_exit)
    imports.when_imported("threading", lambda threading: _note_ends_of_threads(threading, page))


def _note_ends_of_threads(threading: ModuleType, page: Page) -> None:
    previous = threading.excepthook

    def hook(args: Any) -> Any:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            name = getattr(args.thread, "name", None) or "a thread"
            _guarded(page, lambda: raised.write(page, args.exc_value, name, EXCEPTION_OF_THREAD))
            _guarded(page, lambda: _hide_ourselves(args.exc_value, set()))
        return previous(args)

    hook.__module__, hook.__name__, hook.__qualname__ = threading.__name__, "excepthook", "excepthook"
    threading.excepthook = hook  # type: ignore[attr-defined]


def let_gloo_finish() -> None:
    """Lets gloo's threads put away their last collectives while there still is an interpreter.

    A collective that a backward pass began holds a Python object, which a thread of gloo's lets go of afterwards. It
    needs the interpreter for that; where it comes too late, the C++ runtime aborts a process whose work was done.
    """
    if "torch.distributed" not in sys.modules:
        return
    until = time.monotonic() + _PATIENCE_S
    before = _gloo_threads()
    while before and time.monotonic() < until:
        time.sleep(_PAUSE_S)  # without the interpreter's lock, so that they can have it
        now = _gloo_threads()
        if now == before and all(state == "S" for state, _ in now.values()):
            return
        before = now


def _gloo_threads() -> dict[str, tuple[str, str]]:
    """Per thread of gloo's that runs collectives: its state, and how often it went to sleep so far."""
    found: dict[str, tuple[str, str]] = {}
    for thread in os.listdir("/proc/self/task"):
        folder = f"/proc/self/task/{thread}"
        try:
            with open(f"{folder}/comm") as file:
                if file.read().strip() != _GLOO_THREAD:
                    continue
            with open(f"{folder}/status") as file:
                fields = dict(line.split(":", 1) for line in file)
        except FileNotFoundError:
            continue  # the thread ended in between
        found[thread] = (fields["State"].split()[0], fields["voluntary_ctxt_switches"].strip())
    return found


def _hide_ourselves(error: BaseException | None, seen: set[int]) -> None:
    """Takes the probe's own frames out of what is about to be printed."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    if error.__traceback__ is not None:  # to be set to None is not the same to Python as never to have been set
        error.__traceback__ = without_ourselves(error.__traceback__)
    _hide_ourselves(error.__cause__, seen)
    _hide_ourselves(error.__context__, seen)


def _guarded(page: Page, action: Any) -> None:
    try:
        action()
    except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
        page.error(f"noting an exit failed: {type(error).__name__}: {error}")
