"""Where a program ends itself with `raise SystemExit(...)`, which leaves no trace when it runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rankscope.diagnosis.source.syntax import Function, own_nodes


def raised_exits(tree: ast.Module) -> Iterator[tuple[int, str, int | None]]:
    """Line, function, and the code where it is written there; None where it is computed, or a text."""
    for function in (node for node in ast.walk(tree) if isinstance(node, Function | ast.Module)):
        for node in own_nodes(function):
            if isinstance(node, ast.Raise) and node.exc is not None:
                raised = node.exc
                called = raised.func if isinstance(raised, ast.Call) else raised
                if isinstance(called, ast.Name) and called.id == "SystemExit":
                    yield node.lineno, getattr(function, "name", "<module>"), _exit_code(raised)


def _exit_code(raised: ast.expr) -> int | None:
    if not isinstance(raised, ast.Call) or not raised.args:
        return 0
    code = raised.args[0]
    value = code.value if isinstance(code, ast.Constant) else None
    return 0 if isinstance(code, ast.Constant) and value is None else value if isinstance(value, int) else None
