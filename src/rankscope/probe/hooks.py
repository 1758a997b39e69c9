"""What the probe listens to in torch: collectives, optimizer steps, batches, process groups."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rankscope.probe import functional, recorder_server
from rankscope.probe.calls import DEFAULT_GROUP, CallRecorder
from rankscope.probe.finite import FiniteChecks
from rankscope.probe.first_step import FirstStep
from rankscope.probe.imports import ImportWatch
from rankscope.probe.page import Page
from rankscope.probe.phases import PhaseClock
from rankscope.probe.rewrites import watch_learning_rate, watch_loading
from rankscope.probe.rhythm import Rhythm
from rankscope.probe.sharded import ShardedGradients

_NOT_COMPILED = ("rankscope.probe", "rankscope.marks", "rankscope.process_status", "rankscope.distributed")
"""What the compiler must not look into: it would break its graphs there. Not the whole package: `rankscope train` has
its model in it."""


def _keep_compiler_out(trace_rules: ModuleType) -> None:
    for name in _NOT_COMPILED:
        trace_rules.add(name)


class TorchHooks:
    """Installs itself into torch as torch is imported; never imports torch itself."""

    def __init__(self, page: Page, calls: CallRecorder, first: FirstStep, on_group: Callable[[], None]) -> None:
        self._page = page
        self._calls = calls
        self._on_group = on_group
        self._clock = PhaseClock(page)
        self._finite = FiniteChecks(page, self._clock)
        self._rhythm = Rhythm(page, calls, first, self._clock, self._finite)
        calls.on_left = self._clock.call_left

    def watch(self, imports: ImportWatch) -> None:
        imports.when_imported("torch", self._torch)
        imports.when_imported("torch.distributed.c10d_logger", self._c10d_logger)
        imports.when_imported("torch.distributed.distributed_c10d", self._c10d)
        imports.when_imported("torch.distributed", self._distributed)
        imports.when_imported(
            "torch.distributed._functional_collectives", lambda module: functional.record(module, self._calls)
        )
        imports.when_imported("torch.autograd.graph", self._autograd)
        imports.when_imported("torch.optim.optimizer", self._optimizer)
        imports.when_imported("torch.nn.modules.module", lambda module: watch_loading(module, self._calls))
        imports.when_imported("torch.optim.lr_scheduler", lambda module: watch_learning_rate(module, self._calls))
        imports.when_imported("torch.utils.data.dataloader", self._dataloader)
        imports.when_imported("torch.nn.parallel.distributed", self._ddp)
        imports.when_imported(
            "torch.distributed.fsdp._fully_shard._fsdp_param_group", ShardedGradients(self._finite).watch
        )
        imports.when_imported("torch.serialization", self._clock.watch_saving("save"))
        imports.when_imported("torch.distributed.checkpoint.state_dict_saver", self._clock.watch_saving("save"))
        imports.when_imported("safetensors.torch", self._clock.watch_saving("save_file", "save_model"))
        imports.when_imported("torch._dynamo.trace_rules", _keep_compiler_out)

    def _torch(self, module: ModuleType) -> None:
        self._page.stage("torch imported")
        self._finite.start(module)

    def _c10d_logger(self, module: ModuleType) -> None:
        """Every collective is decorated with this module's `_exception_logger`: the one place to listen to all."""
        original = module._exception_logger

        def log(name: str, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            message = module._get_msg_dict(name, *args, **kwargs)
            message["error"] = f"{error}"
            module._c10d_logger.debug(message)

        def exception_logger(function: Callable[..., Any]) -> Callable[..., Any]:
            name = function.__name__
            return self._calls.wrap(
                function,
                like=original(function).__code__,
                on_error=lambda error, args, kwargs: log(name, error, args, kwargs),
            )

        module._exception_logger = exception_logger  # type: ignore[attr-defined]

    def _c10d(self, module: ModuleType) -> None:
        calls = self._calls
        for name in ("isend", "irecv", "batch_isend_irecv", "monitored_barrier"):
            if hasattr(module, name):
                setattr(module, name, calls.wrap(getattr(module, name)))
        if not hasattr(module.all_reduce, "__wrapped__"):
            self._page.error("this torch does not decorate its collectives; call sites are not recorded")
        from torch._C._distributed_c10d import Store, Work

        calls.wrap_method(Work, "wait", lambda *_args, **_kwargs: "")
        calls.wrap_method(Store, "wait", lambda _store, keys=(), *_rest, **_kwargs: _first(keys))
        calls.wrap_method(Store, "get", lambda _store, key="", *_rest, **_kwargs: str(key))
        calls.before("init_process_group", self._init_begins)
        calls.before("destroy_process_group", lambda _args, _kwargs: self._finite.last_look())
        calls.after("init_process_group", lambda failed: None if failed else self._init_done(module))
        if hasattr(module, "destroy_process_group"):
            destroy = calls.wrap_plain(module.destroy_process_group, "destroy_process_group", _destroyed)
            setattr(module, "destroy_process_group", destroy)  # noqa: B010  mypy knows of no such attribute
        for name, members in (("new_group", _members), ("split_group", None)):
            if hasattr(module, name):
                setattr(module, name, calls.wrap_plain(getattr(module, name), name, members))
                self._follow(module, name, lambda group: self._note_group(module, group))

    def _follow(self, module: ModuleType, name: str, then: Callable[[Any], None]) -> None:
        """Calls `then` with the result after each successful call of a function of the module."""
        function = getattr(module, name)

        @functools.wraps(function)
        def followed(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            try:
                then(result)
            except Exception as error:  # noqa: BLE001  noted on the page and shown in the report
                self._page.error(f"hook after {name} failed: {type(error).__name__}: {error}")
            return result

        setattr(module, name, followed)

    def _distributed(self, module: ModuleType) -> None:
        """Calls in which torch's C++ makes collectives of its own: the line they come from is known only here."""
        for name in ("_broadcast_coalesced", "_verify_params_across_processes"):
            if hasattr(module, name):
                setattr(module, name, self._calls.wrap_plain(getattr(module, name), name))

    def _autograd(self, module: ModuleType) -> None:
        if hasattr(module, "_engine_run_backward"):
            module._engine_run_backward = self._rhythm.backward(module._engine_run_backward)  # type: ignore[attr-defined]

    def _ddp(self, module: ModuleType) -> None:
        """Models that ranks hold alike: what goes in, and the gradients before they are reduced."""
        replicated, finite = module.DistributedDataParallel, self._finite
        construct = replicated.__init__

        @functools.wraps(construct)
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:
            construct(model, *args, **kwargs)
            finite.replicated(model)

        replicated.__init__ = __init__
        replicated._pre_forward = self._rhythm.before_forward(replicated._pre_forward)

    def _init_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Positional order of the public signature: backend, init_method, timeout, world_size, rank.
        world = kwargs.get("world_size", args[3] if len(args) > 3 else -1)
        rank = kwargs.get("rank", args[4] if len(args) > 4 else -1)
        if not isinstance(world, int) or world < 0:
            world = _number(os.environ.get("WORLD_SIZE"), 0)
        if not isinstance(rank, int) or rank < 0:
            rank = _number(os.environ.get("RANK"), self._page.rank)
        self._page.declare(rank, world)
        self._page.stage("init_process_group")
        self._on_group()

    def _init_done(self, module: ModuleType) -> None:
        group = module._get_default_group()
        self._page.declare(module.get_rank(), module.get_world_size())
        self._note_group(module, group)
        self._page.stage("process group ready")
        recorder_server.start(self._page)

    def _note_group(self, module: ModuleType, group: Any) -> None:
        ranks = module._world.pg_group_ranks.get(group)
        if ranks is None or not hasattr(group, "group_name"):
            return  # not a member: torch then hands out a number, or an object without a name
        self._page.group(group.group_name, getattr(group, "group_desc", ""), sorted(ranks))
        self._calls.group_made(group.group_name)

    def _optimizer(self, module: ModuleType) -> None:
        module.register_optimizer_step_pre_hook(self._rhythm.before_step())
        module.register_optimizer_step_post_hook(self._rhythm.after_step())

    def _dataloader(self, module: ModuleType) -> None:
        base = module._BaseDataLoaderIter
        base.__next__ = self._rhythm.next_batch(base.__next__)


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.lstrip("-").isdigit() else otherwise


def _destroyed(group: Any = None) -> str:
    """`all`: the rank takes part in no collective any more; otherwise the name of the group that it leaves."""
    name = getattr(group, "group_name", "") if group is not None else DEFAULT_GROUP
    return "all" if name == DEFAULT_GROUP else str(name)


def _members(ranks: Any = None, *_rest: Any, **_kwargs: Any) -> str:
    return "all" if ranks is None else ",".join(map(str, sorted(ranks)))


def _first(keys: Any) -> str:
    return str(keys[0]) if isinstance(keys, (list, tuple)) and keys else ""
