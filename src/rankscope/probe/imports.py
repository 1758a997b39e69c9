"""Calls us back when a module has been imported, without importing it ourselves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Callback = Callable[[ModuleType], None]


class ImportWatch:
    """A finder that finds nothing by itself: for watched names it asks the finders behind it and adds a callback."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._report = report

    def when_imported(self, name: str, callback: Callback) -> None:
        """A module that is there already is told at once."""
        module = sys.modules.get(name)
        if module is None:
            self._callbacks.setdefault(name, []).append(callback)
        else:
            self._tell(module, [callback])

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._callbacks:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._add_callbacks(spec)
                return spec
        return None

    def _add_callbacks(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # Only now: many programs ask for a spec just to see whether a package is there.
            self._tell(module, self._callbacks.pop(spec.name, []))

        # On the instance: the loader stays what it was for everybody who looks at its type.
        loader.exec_module = exec_module  # type: ignore[method-assign]

    def _tell(self, module: ModuleType, callbacks: list[Callback]) -> None:
        for callback in callbacks:
            try:
                callback(module)
            except Exception as error:  # noqa: BLE001  the import itself went well
                self._report(f"hook for {module.__name__} failed: {type(error).__name__}: {error}")
