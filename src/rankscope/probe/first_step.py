"""The first step of training as stages: first batch, forward, backward, optimizer step; and every compilation."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from rankscope.probe.calls import BACKWARD, CallRecorder
from rankscope.probe.constructions import Constructions
from rankscope.probe.imports import ImportWatch
from rankscope.probe.sites import STAGE_CODE
from rankscope.probe.stage_wrappers import hide_own_entry
from rankscope.probe.stages import OpenStage, StageBook


class FirstStep:
    """Listens until the first optimizer step is made, then takes itself away."""

    def __init__(self, book: StageBook, calls: CallRecorder, constructions: Constructions) -> None:
        self._book = book
        self._calls = calls
        self._constructions = constructions
        self._module_class: Any = None
        self._call: Any = None
        """What `Module.__call__` was before; None unless the first forward is waited for."""
        self._forward_seen = False
        self._batch: OpenStage | None = None
        self.done_with_batches = False
        """The first batch came, or failed to."""
        self._compiling: list[OpenStage | None] = []
        self._compiled = 0

    def watch(self, imports: ImportWatch) -> None:
        imports.when_imported("torch.nn.modules.module", self._modules)
        imports.when_imported("torch.autograd.graph", self._autograd)
        imports.when_imported("torch.optim.optimizer", self._optimizer)
        imports.when_imported("torch._dynamo.utils", self._dynamo_utils)
        imports.when_imported("torch._dynamo.callback", self._compilations)

    # The data loader's hook calls these two.

    def batch_asked(self) -> None:
        if self._batch is None and not self.done_with_batches:
            self._batch = self._book.begin(
                "first batch", "First batch loaded", "first batch", sys._getframe(2), announce=True
            )

    def batch_came(self, failed: bool) -> None:
        self.done_with_batches = True
        if self._batch is not None:
            self._book.end(self._batch, failed=failed)
            self._batch = None
            self._wait_for_forward()

    def _modules(self, module: ModuleType) -> None:
        self._module_class = module.Module

    def _wait_for_forward(self) -> None:
        """Stands in for `Module.__call__` for one call: the first of a model, outside of anything compiled."""
        owner = self._module_class
        if owner is None or self._forward_seen or self._call is not None:
            return
        original = owner.__dict__.get("__call__")
        if original is None:
            return
        self._call = original
        owner.__call__ = _make_first_call(self, original)

    def _stop_waiting(self) -> None:
        original, self._call = self._call, None
        self._forward_seen = True
        # Whoever replaced it meanwhile, as tracing does, puts ours back later: it then only passes calls on.
        if original is not None and getattr(self._module_class.__dict__.get("__call__"), "_first_call", False):
            self._module_class.__call__ = original

    def begin_forward(self, module: Any, args: tuple[Any, ...]) -> OpenStage | None:
        if self._call is None:
            self._stop_waiting()
            return None
        if next(iter(module.parameters()), None) is None:
            return None
        self._stop_waiting()
        frame = sys._getframe(2)
        device = next((str(a.device) for a in args if type(a).__name__ == "Tensor" and a.device.type != "cpu"), "")
        if device:
            self._book.mark("First batch moved", "first batch", frame, note=device)
        return self._book.begin("first forward", "First forward done", "first forward", frame, announce=True)

    def end_forward(self, stage: OpenStage | None, failed: bool) -> None:
        if failed and (error := sys.exc_info()[1]) is not None:
            hide_own_entry(error)
        self._book.end(stage, failed=failed)

    def note(self, error: Exception) -> None:
        self._book._give_up(error)

    def _autograd(self, _module: ModuleType) -> None:
        begun: list[OpenStage | None] = []

        def before(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
            # The compiler asks autograd for the backward graph of what it traces: nothing is computed yet.
            if not begun and not self._compiling and self._book.setting_up:
                frame = sys._getframe(3)
                begun.append(
                    self._book.begin("first backward", "First backward done", "first backward", frame, announce=True)
                )

        def after(failed: bool) -> None:
            if begun or not self._book.setting_up:
                self._book.end(begun[0] if begun else None, failed=failed)
                self._calls.forget(BACKWARD, before, after)

        self._calls.before(BACKWARD, before)
        self._calls.after(BACKWARD, after)

    def _optimizer(self, module: ModuleType) -> None:
        begun: list[OpenStage | None] = []
        handles: list[Any] = []

        def before(*_arguments: Any) -> None:
            if not begun:
                frame = sys._getframe(1)
                begun.append(self._book.begin("first optimizer step", "First optimizer step done", "first step", frame))

        def after(*_arguments: Any) -> None:
            self._book.end(begun[0] if begun else None)
            for handle in handles:
                handle.remove()
            self._stop_waiting()
            self._constructions.end_set_up()
            self._book.end_set_up()

        handles.append(module.register_optimizer_step_pre_hook(before))
        handles.append(module.register_optimizer_step_post_hook(after))

    def _dynamo_utils(self, module: ModuleType) -> None:
        kept = getattr(module, "unpatched_nn_module_call", None)
        if getattr(kept, "_first_call", False) and self._call is not None:
            module.unpatched_nn_module_call = self._call  # type: ignore[attr-defined]

    def _compilations(self, module: ModuleType) -> None:
        """Torch tells when it begins to compile and when it is done; every recompilation too."""
        handler = module.callback_handler

        def begun(*_args: Any) -> None:
            self._stop_waiting()
            # Where a model makes a list of modules while it runs, the compiler would meet their hooks.
            self._constructions.end_set_up()
            self._compiled += 1
            number = f"compilation {self._compiled}"
            self._compiling.append(
                self._book.begin(
                    "torch.compile", "Compiled by torch.compile", "", sys._getframe(1), note=number, announce=True
                )
            )

        def done(*_args: Any) -> None:
            if self._compiling:
                self._book.end(self._compiling.pop())

        handler.register_start_callback(begun)
        handler.register_end_callback(done)


_SOURCE = """\
def make(waiting, call):
    def __call__(self, *args, **kwargs):
        stage = None
        try:
            stage = waiting.begin_forward(self, args)
        except Exception as error:
            waiting.note(error)
        if stage is None:
            return call(self, *args, **kwargs)
        try:
            result = call(self, *args, **kwargs)
        except BaseException:
            waiting.end_forward(stage, True)
            raise
        waiting.end_forward(stage, False)
        return result
    __call__._first_call = True
    return __call__
"""
_scope: dict[str, Any] = {}
exec(compile(_SOURCE, STAGE_CODE, "exec"), _scope)
_make_first_call = _scope["make"]
