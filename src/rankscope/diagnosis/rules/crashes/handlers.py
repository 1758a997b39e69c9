"""Whether the program had expected an exception and taken another way, in which it then failed by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rankscope.diagnosis.source.syntax import parsed
from rankscope.diagnosis.verdict import Where
from rankscope.evidence.model import Evidence, Frame, RaisedException

_EXPECTED = frozenset(
    {
        *("KeyError", "IndexError", "LookupError", "AttributeError", "StopIteration", "StopAsyncIteration"),
        *("ImportError", "ModuleNotFoundError", "FileNotFoundError", "FileExistsError", "Empty", "Full"),
        *("TimeoutError", "NotImplementedError", "BlockingIOError"),
    }
)
"""Raised in the ordinary course of many programs: `except KeyError: value = compute(key)`."""


def was_answered(earlier: RaisedException, later: RaisedException, evidence: Evidence) -> bool:
    """`later` was raised in an `except` branch for such an exception alone, and not by a `raise` that passes it on."""
    if not earlier.frames:
        return False
    tried = earlier.frames[-1]  # the outermost: the exception was caught there
    tree = _tree(tried, evidence)
    if tree is None:
        return False
    for frame in later.frames:
        if frame.file == tried.file and frame.function == tried.function:
            branch = _branch(tree, tried.line, frame.line)
            if branch is not None:
                return _names(branch.type) <= _EXPECTED and branch.type is not None and not _raises(branch, frame.line)
    return False


def branch_around(at: Where, evidence: Evidence) -> str | None:
    """What the `except` branch catches in which a line stands; None where it stands in none, empty for a bare one."""
    tree = _tree(at, evidence)
    found: ast.ExceptHandler | None = None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.ExceptHandler) and _holds(node.body, at.line):
            found = node
    return None if found is None else ast.unparse(found.type) if found.type is not None else ""


def _tree(frame: Frame | Where, evidence: Evidence) -> ast.Module | None:
    text = next((source.text for source in evidence.sources if source.file == frame.file), None)
    return None if text is None else parsed(text)


def _branch(tree: ast.Module, tried: int, handled: int) -> ast.ExceptHandler | None:
    """The innermost branch that catches what the one line raises and holds the other."""
    found = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and _holds(node.body, tried):
            found = next((branch for branch in node.handlers if _holds(branch.body, handled)), found)
    return found


def _holds(body: list[ast.stmt], line: int) -> bool:
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def _raises(branch: ast.ExceptHandler, line: int) -> bool:
    return any(
        isinstance(node, ast.Raise) and node.lineno <= line <= (node.end_lineno or node.lineno)
        for statement in branch.body
        for node in ast.walk(statement)
    )


def _names(caught: ast.expr | None) -> set[str]:
    return set() if caught is None else {name for each in _each(caught) for name in _name(each)}


def _each(caught: ast.expr) -> Iterator[ast.expr]:
    yield from caught.elts if isinstance(caught, ast.Tuple) else (caught,)


def _name(caught: ast.expr) -> Iterator[str]:
    """Of something computed no name is known, which is none of the expected ones."""
    if isinstance(caught, ast.Attribute):
        yield caught.attr
    else:
        yield caught.id if isinstance(caught, ast.Name) else ""
