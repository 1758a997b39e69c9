"""Where the value that a line differentiates was computed: `loss.backward()` → `loss = criterion(model(x), y)`."""

from __future__ import annotations

import ast

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Assignment = ast.Assign | ast.AnnAssign | ast.AugAssign


def computed_at(tree: ast.Module, line: int) -> int | None:
    """The line of the last assignment, in the same function and before it, to what is differentiated on a line. One
    that only scales the value, as `loss = loss / 4` does, is passed over. None where no backward pass stands there."""
    node = _loss(tree, line)
    return None if node is None else node.lineno


def fed_at(tree: ast.Module, line: int) -> int | None:
    """The line on which the batch entered what is differentiated on a line: from the loss back over the first argument
    of each call, as long as it was assigned in the same function."""
    node = _loss(tree, line)
    while node is not None:
        fed = _first_argument(node.value) if node.value is not None else None
        earlier = _last_assignment(_scope(tree, line), {fed}, node.lineno) if fed is not None else None
        if earlier is None:
            return node.lineno
        node = earlier
    return None


def _loss(tree: ast.Module, line: int) -> _Assignment | None:
    call = next((node for node in ast.walk(tree) if _differentiates(node, line)), None)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    value = call.args[0] if call.args else call.func.value
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    return _last_assignment(_scope(tree, line), names, line)


def _last_assignment(scope: ast.AST, names: set[str], before: int) -> _Assignment | None:
    found = [node for node in ast.walk(scope) if isinstance(node, _Assignment) and node.lineno < before]
    for node in sorted(found, key=lambda node: -node.lineno):
        if names & _targets(node) and not _only_scales(node, names):
            return node
    return None


def _first_argument(value: ast.expr) -> str | None:
    """`out` of `criterion(out, y)`, `x` of `model(x)`, `loss` of `loss.mean()`."""
    while isinstance(value, ast.Call | ast.Attribute | ast.Subscript):
        value = (value.args[0] if value.args else value.func) if isinstance(value, ast.Call) else value.value
    return value.id if isinstance(value, ast.Name) else None


def _differentiates(node: ast.AST, line: int) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("backward", "manual_backward")
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    )


def _scope(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function that holds the line; the module where none does."""
    inside = [
        node
        for node in ast.walk(tree)
        if isinstance(node, _Function) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(inside, key=lambda node: node.lineno, default=tree)


def _targets(node: _Assignment) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def _only_scales(node: _Assignment, names: set[str]) -> bool:
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Div | ast.Mult)
    value = node.value
    return (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Div | ast.Mult)
        and isinstance(value.left, ast.Name)
        and value.left.id in names
        and not any(isinstance(each, ast.Call) for each in ast.walk(value.right))
    )
