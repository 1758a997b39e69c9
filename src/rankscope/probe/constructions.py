"""Stages of objects that the user's own classes make: models, modules, data modules, strategies.

A user's class is never touched. Where its construction is seen to begin, an object is left on the frame of the
outermost `__init__`, in the slot that tracers use; it goes away with the frame, and that ends the construction.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from rankscope.probe.imports import ImportWatch
from rankscope.probe.stage_wrappers import Call, wrap_attribute
from rankscope.probe.stages import OpenStage, StageBook

_MODELS_OF_TORCH = frozenset({"Sequential", "Transformer"})
"""Classes of torch that are models by themselves; the rest are layers."""
_MOST_LOOKS = 5000
"""Layers made outside of any model are looked at that often; a program that makes more is no longer setting up."""

_BASES = (
    ("{}.core.module", "LightningModule", "module", "{} ready"),
    ("{}.core.datamodule", "LightningDataModule", "data module", "{} ready"),
    ("{}.strategies.strategy", "Strategy", "accelerator", "Accelerator configured"),
)


class Constructions:
    def __init__(self, book: StageBook) -> None:
        self._book = book
        self._handles: list[Any] = []
        self._looks = 0

    def watch(self, imports: ImportWatch) -> None:
        imports.when_imported("torch.nn.modules.module", self._modules)
        for package in ("lightning.pytorch", "pytorch_lightning"):
            for module, name, kind, words in _BASES:
                imports.when_imported(module.format(package), self._base(name, kind, words))

    def end_set_up(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _modules(self, module: ModuleType) -> None:
        base = module.Module

        def registered(owner: Any, _name: str, _value: Any) -> None:
            book = self._book
            if not book.inside("model") and not book.inside("module"):
                self._look(base, owner)

        self._handles = [
            module.register_module_parameter_registration_hook(registered),
            module.register_module_module_registration_hook(registered),
        ]

    def _look(self, base: type, owner: Any) -> None:
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            self.end_set_up()
            return
        found = _outermost_constructor(sys._getframe(2), base)
        if found is None:
            return
        frame, made = found
        kind = type(made)
        if kind.__module__.startswith("torch.") and kind.__name__ not in _MODELS_OF_TORCH:
            return
        del owner
        self._begin(frame, made, "model", f"{kind.__name__}.__init__", "Model created", kind.__name__)

    def _base(self, name: str, kind: str, words: str) -> Callable[[ModuleType], None]:
        """A class of a library from which the user's classes are made, and whose `__init__` they call first."""

        def install(module: ModuleType) -> None:
            owner = getattr(module, name)

            def before(book: StageBook, frame: FrameType, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
                if not args or book.inside(kind):
                    return
                found = _outermost_constructor(frame, owner)
                if found is not None and found[1] is args[0]:
                    made = type(args[0]).__name__
                    said = words.format(made)
                    self._begin(found[0], args[0], kind, f"{made}.__init__", said, "" if made in said else made)

            # Where nobody derives from it, the call itself is the construction.
            call = Call("{cls}.__init__", words.replace("{}", "{cls}"), kind, announce=False, before=before)
            wrap_attribute(self._book, owner, "__init__", call)

        return install

    def _begin(self, frame: FrameType, made: Any, kind: str, label: str, words: str, note: str) -> None:
        if frame.f_trace is not None or sys.gettrace() is not None:
            return  # a debugger is at work there
        stage = self._book.begin(label, words, kind, frame.f_back, note=note, frame_id=id(frame))
        if stage is not None:
            frame.f_trace = _Ending(self._book, stage, made)


class _Ending:
    """Ends the stage when the frame that holds it is gone. A constructor that failed has left no object."""

    def __init__(self, book: StageBook, stage: OpenStage, made: Any) -> None:
        self._book = book
        self._stage = stage
        self._made = weakref.ref(made)

    def __call__(self, _frame: FrameType, _event: str, _argument: Any) -> None:
        """A tracer that was switched on meanwhile asks whether to trace on: no."""

    def __del__(self) -> None:
        self._book.end(self._stage, failed=self._made() is None)


def _outermost_constructor(frame: FrameType | None, base: type) -> tuple[FrameType, Any] | None:
    """The outermost `__init__` on the stack whose object is a `base`, with the object."""
    found = None
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount:
            made = frame.f_locals.get(code.co_varnames[0])
            if isinstance(made, base):
                found = frame, made
        frame = frame.f_back
    return found
