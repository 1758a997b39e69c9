"""Calls us back when a module has been imported, without importing it ourselves."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable, Sequence
from importlib import _bootstrap
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rankscope.probe.sites import STAGE_CODE, without_ourselves

Callback = Callable[[ModuleType], None]


class ImportWatch:
    """A finder that finds nothing by itself: for watched names it asks the finders behind it and adds a callback."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._report = report
        self._heavy: frozenset[str] = frozenset()
        self._around: Callable[[Callable[[], None]], None] | None = None
        self._asked: set[tuple[int, str]] = set()

    def when_imported(self, name: str, callback: Callback) -> None:
        """A module that is there already is told at once."""
        module = sys.modules.get(name)
        if module is None:
            self._callbacks.setdefault(name, []).append(callback)
        else:
            self._tell(module, [callback])

    def lock(self, names: Sequence[str], around: Callable[[Callable[[], None]], None]) -> None:
        """Import these modules, and what they import, inside of `around`."""
        self._heavy = frozenset(names)
        self._around = around

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._callbacks and name not in self._heavy:
            return None
        asked = (_thread.get_ident(), name)
        if asked in self._asked:
            return None  # by ourselves, or by another finder that looks behind itself
        self._asked.add(asked)
        try:
            # Importlib's own lookup: it knows what to do about finders that are old, that raise, that are gone.
            spec: ModuleSpec | None = _bootstrap._find_spec(name, path, target)  # type: ignore[attr-defined]
        except BaseException as error:
            error.__traceback__ = without_ourselves(error.__traceback__)
            raise
        finally:
            self._asked.discard(asked)
        if spec is not None:
            self._follow(spec)
        return spec

    def _follow(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return
        around = self._around if spec.name in self._heavy else None
        try:
            _Execution(loader, spec.name, around, self._executed)
        except (AttributeError, TypeError) as error:  # a loader that takes no attributes
            self._report(f"the import of {spec.name} cannot be followed: {error}")

    def _executed(self, module: ModuleType, name: str) -> None:
        # Only now: many programs ask for a spec just to see whether a package is there.
        self._tell(module, self._callbacks.pop(name, []))

    def _tell(self, module: ModuleType, callbacks: list[Callback]) -> None:
        for callback in callbacks:
            try:
                callback(module)
            except Exception as error:  # noqa: BLE001  the import itself went well
                self._report(f"hook for {module.__name__} failed: {type(error).__name__}: {error}")


class _Execution:
    """Stands in a loader's place for `exec_module` until the module is executed.

    On the instance: the loader stays what it was for everybody who looks at its type, and pickles as it did. It may
    load other modules too, as that of a zip file does.
    """

    def __init__(
        self,
        loader: Any,
        name: str,
        around: Callable[[Callable[[], None]], None] | None,
        executed: Callable[[ModuleType, str], None],
    ) -> None:
        self._loader, self._name, self._around, self._executed = loader, name, around, executed
        self._execute = loader.exec_module
        self._own = [vars(loader)["exec_module"]] if "exec_module" in vars(loader) else []
        loader.exec_module = self

    def __call__(self, module: ModuleType) -> None:
        try:
            if module.__name__ != self._name:
                self._execute(module)
                return
            self._withdraw()
            if self._around is None:
                self._execute(module)
            else:
                self._around(lambda: self._execute(module))
        except BaseException as error:
            error.__traceback__ = without_ourselves(error.__traceback__)
            raise
        self._executed(module, self._name)

    # Warnings that a module gives while it is imported count no frames of the import system; see stage_wrappers.
    __call__.__code__ = __call__.__code__.replace(co_filename=STAGE_CODE)

    def _withdraw(self) -> None:
        if vars(self._loader).get("exec_module") is not self:
            return  # somebody else has put theirs above ours
        if self._own:
            self._loader.exec_module = self._own[0]
        else:
            del self._loader.exec_module

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, str]]:
        return getattr, (self._loader, "exec_module")
