"""Functional collectives, which DTensor, tensor parallelism and compiled programs use in place of those of c10d.

They do not pass the decorator that the other collectives have, return a tensor at once, and wait where that is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rankscope.probe.calls import CallRecorder, Reader, Token
from rankscope.probe.sites import OWN_CODE

_OPERATIONS = {
    "broadcast": "broadcast",
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce_coalesced",
    "all_gather_single": "all_gather_into_tensor",
    "all_gather_single_autograd": "all_gather_into_tensor",
    "all_gather_tensor": "all_gather_into_tensor",
    "all_gather_tensor_autograd": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_autograd": "reduce_scatter_tensor",
    "reduce_scatter_tensor": "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "all_to_all_single",
    "all_to_all_single_autograd": "all_to_all_single",
    "permute_tensor": "all_to_all_single",
}
"""Function → the name that the same operation has in torch.distributed: ranks may mix the two."""

# While the program is traced nothing is communicated, and the tracer must see nothing but torch's own function.
_WRAPPER = """\
def make(function, tracing, begin, end, wraps):
    @wraps(function)
    def wrapper(*args, **kwargs):
        if tracing():
            return function(*args, **kwargs)
        token = begin(args, kwargs)
        failed = True
        try:
            result = function(*args, **kwargs)
            failed = False
            return result
        finally:
            end(token, failed)
    return wrapper
"""


def record(module: ModuleType, calls: CallRecorder) -> None:
    """Records the functions of torch.distributed._functional_collectives, and their waits."""
    tracing = getattr(module, "_are_we_tracing", None) or module.is_torchdynamo_compiling
    for name, op in _OPERATIONS.items():
        function = getattr(module, name, None)
        if function is not None:
            setattr(module, name, _recorded(function, op, _reader(function, module), tracing, calls))
    module.wait_tensor = _recorded(  # type: ignore[attr-defined]
        module.wait_tensor, "Work.wait", None, tracing, calls
    )


def _recorded(
    function: Callable[..., Any], op: str, read: Reader | None, tracing: Callable[[], bool], calls: CallRecorder
) -> Any:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
        return calls.begin(op, read, args, kwargs) if calls.enabled else None

    def end(token: Token | None, failed: bool) -> None:
        calls.end(op, token, failed)

    scope: dict[str, Any] = {}
    exec(compile(_WRAPPER, OWN_CODE, "exec"), scope)
    return scope["make"](function, tracing, begin, end, functools.wraps)


def _reader(function: Callable[..., Any], module: ModuleType) -> Reader:
    """Group, root and tensor of a call, by the function's own parameter names."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    group_at = names.index("group")
    source_at = names.index("src") if "src" in names else len(names)

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, int, Any, str]:
        group = args[group_at] if len(args) > group_at else kwargs.get("group")
        # A list of ranks is resolved by torch with a warning; it is not for us to warn a second time.
        name = "" if group is None or isinstance(group, list) else str(module._resolve_group_name(group))
        root = args[source_at] if len(args) > source_at else kwargs.get("src", -1)
        tensor = args[0] if args else kwargs.get(names[0])
        return name, root if isinstance(root, int) else -1, tensor, ""

    return read
