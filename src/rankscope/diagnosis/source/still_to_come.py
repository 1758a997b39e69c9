"""What a function still has to do after a line, before it returns or its loop begins anew."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

_LEAVES = ast.Return | ast.Continue | ast.Break | ast.Raise


def still_calls(tree: ast.Module, line: int, names: Collection[str]) -> bool:
    """Whether a function of one of these names is called after the line, on the way that leads on from it."""
    return any(_called(node) in names for statement in _after(tree.body, line) for node in ast.walk(statement))


def _after(body: list[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """The statements that follow the one of a line: of the innermost block, then of those around it, as far as the
    function goes, and not beyond the loop that they are in."""
    here = next((at for at, each in enumerate(body) if each.lineno <= line <= (each.end_lineno or each.lineno)), None)
    if here is None:
        return
    statement = body[here]
    for block in _blocks(statement):
        if any(each.lineno <= line <= (each.end_lineno or each.lineno) for each in block):
            yield from _after(block, line)
            if isinstance(statement, ast.Try) and block is not statement.finalbody:
                yield from statement.finalbody
            if isinstance(block[-1], _LEAVES):
                return
    if isinstance(statement, _LEAVES | ast.For | ast.AsyncFor | ast.While | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for each in body[here + 1 :]:
        yield each
        if isinstance(each, _LEAVES):
            return


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list) and block:
            yield block
    for handler in getattr(statement, "handlers", ()):
        yield handler.body
    for case in getattr(statement, "cases", ()):
        yield case.body


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
