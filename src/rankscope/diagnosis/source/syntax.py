"""The user's source as a tree, and the parts of it that belong to one function."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from functools import lru_cache

Function = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=64)
def parsed(text: str) -> ast.Module | None:
    """None where it is no program that this Python reads."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's strings, which are no concern of the report's reader
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function, without the functions within it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Function | ast.Lambda):
            yield node
            waiting.extend(ast.iter_child_nodes(node))


def in_comprehension(tree: ast.Module, line: int) -> bool:
    """Whether a line lies in a list, set, dict or generator that is made item by item."""
    return any(
        isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        for node in ast.walk(tree)
    )
