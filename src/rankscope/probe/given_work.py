"""Work that Ray gives to its worker processes: an actor's methods, and the function of Train's workers.

The process stays when the work has ended, well or by an exception that Ray hands to its caller; Ray ends it once nobody
needs it any more.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

from rankscope.probe import raised
from rankscope.probe.calls import build_wrapper
from rankscope.probe.imports import ImportWatch
from rankscope.probe.page import EXCEPTION_OF_WORK, WORK_FAILED, WORK_OVER, Page

_TRAIN = "ray.train.v2._internal.execution.worker_group.thread_runner"


def watch(page: Page, imports: ImportWatch) -> None:
    work = _Work(page)
    imports.when_imported("ray._private.function_manager", lambda module: _actors(module, work))
    imports.when_imported(_TRAIN, lambda module: _train(module, work))


class _Work:
    def __init__(self, page: Page) -> None:
        self._page = page
        self._under_way = 0
        self._lasting_failure = False

    def begin(self) -> None:
        self._under_way += 1
        self._page.lower_flag(WORK_OVER if self._lasting_failure else WORK_OVER | WORK_FAILED)

    def end(self) -> None:
        self._under_way -= 1
        if self._under_way == 0:
            self._page.raise_flag(WORK_OVER)

    def failed(self, error: BaseException, *, lasting: bool) -> None:
        """`lasting`: the process was made for this work, and later calls do not make the failure good."""
        # What it raises before it is a rank, say in its constructor, is its caller's affair.
        if isinstance(error, Exception) and self._page.members:
            try:
                raised.write(self._page, error, entry=EXCEPTION_OF_WORK)
            except Exception as fault:  # noqa: BLE001  noted on the page and shown in the report
                self._page.error(f"noting an exception failed: {type(fault).__name__}: {fault}")
            self._lasting_failure = self._lasting_failure or lasting
            self._page.raise_flag(WORK_FAILED)


def _actors(module: ModuleType, work: _Work) -> None:
    manager = module.FunctionActorManager
    make = manager._make_actor_method_executor

    def begin(_args: Any, _kwargs: Any) -> None:
        work.begin()

    def failed(_token: Any, error: BaseException, _args: Any, _kwargs: Any) -> None:
        work.failed(error, lasting=False)

    def end(_token: Any) -> None:
        work.end()

    @functools.wraps(make)
    def make_executor(self: Any, method_name: str, method: Any) -> Any:
        execute = make(self, method_name, method)
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            return execute  # made at once, and run later
        return build_wrapper(execute, begin, failed, end)

    manager._make_actor_method_executor = make_executor


def _train(module: ModuleType, work: _Work) -> None:
    """Its thread counts the frames that it leaves out of the traceback: none is added. The thread that waits for the
    result, and the function that packs the exception, tell as much."""
    runner = module.ThreadRunner
    run, wait, pack = runner.run, runner._monitor_target, module.construct_user_exception_with_traceback

    @functools.wraps(run)
    def begin(self: Any, target: Any) -> Any:
        work.begin()
        return run(self, target)

    @functools.wraps(pack)
    def failed(e: BaseException, *args: Any, **kwargs: Any) -> Any:
        work.failed(e, lasting=True)
        return pack(e, *args, **kwargs)

    @functools.wraps(wait)
    def end(self: Any) -> None:
        wait(self)
        work.end()

    runner.run, runner._monitor_target = begin, end
    module.construct_user_exception_with_traceback = failed  # type: ignore[attr-defined]
