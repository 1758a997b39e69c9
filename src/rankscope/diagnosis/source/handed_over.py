"""Which variable a statement hands over to a function."""

from __future__ import annotations

import ast


def handed_over(tree: ast.Module, line: int) -> str:
    """The first argument's variable of the outermost call of the simple statement on a line; empty without one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr | ast.Assign) and node.lineno <= line <= (node.end_lineno or node.lineno):
            value = node.value
            if isinstance(value, ast.Call) and value.args:
                return _variable(value.args[0])
    return ""


def _variable(value: ast.expr) -> str:
    """`x` of `x`, `x.view(-1)`, `x.grad`; the whole of `x[0]`, as another index is another tensor."""
    while isinstance(value, ast.Call | ast.Attribute):
        value = value.func if isinstance(value, ast.Call) else value.value
    return ast.unparse(value) if isinstance(value, ast.Name | ast.Subscript) else ""
