"""Source files of this machine that logs and dumps name. Those may come from anybody, and what is read goes into a page
that is sent to others: a file is read only where it is the program that the frames speak of."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterable

from rankscope.evidence.model import Frame, Source
from rankscope.evidence.sources import as_source, texts_of

_MODULE = "<module>"
_EXPRESSIONS: dict[type[ast.AST], str] = {
    ast.Lambda: "<lambda>",
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
    ast.GeneratorExp: "<genexpr>",
}
_Function = ast.FunctionDef | ast.AsyncFunctionDef
# A stack stands in none of the other statements: a module of settings alone is nobody's program.
_Acts = ast.Call | ast.Import | ast.ImportFrom | ast.BinOp | ast.Raise | ast.Assert | ast.Attribute | ast.Subscript
_COMPILED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_\d+")


def read_named_sources(frames: Iterable[Frame], collected_at: float) -> tuple[Source, ...]:
    """As `read_sources`, of the files that are Python programs (`.py`) and in which every frame that names them stands
    where it says: in a function of that name. And only if they were not edited since: line numbers of another version
    would mislead."""
    named: dict[str, set[tuple[str, int]]] = {}
    for frame in frames:
        if frame.user and not frame.native and frame.file.endswith(".py"):
            named.setdefault(frame.file, set()).add((frame.function, frame.line))
    return tuple(
        as_source(file, text)
        for file, text in texts_of(named)
        if _unchanged(file, collected_at) and is_program_of(text, named[file])
    )


def is_program_of(text: str, places: Iterable[tuple[str, int]]) -> bool:
    """Whether the text is Python in which each line lies in the function that is named with it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's strings, which are no concern of the report's reader
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    lines = _lines_by_name(tree)
    return all(line in lines.get(_name(function), ()) for function, line in places)


def _name(function: str) -> str:
    """As the source spells it: without the classes and functions around it, without torch.compile's own addition."""
    plain = function.rpartition(".")[2]
    compiled = _COMPILED.fullmatch(plain)
    return compiled["function"] if compiled else plain


def _lines_by_name(tree: ast.Module) -> dict[str, set[int]]:
    """The name that a frame has → the lines in which it can stand."""
    found: dict[str, set[int]] = {}
    bodies: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _Function | ast.ClassDef):
            found.setdefault(node.name, set()).update(_lines(node))
            if not isinstance(node, ast.ClassDef) and node.body[0].lineno > node.lineno:
                bodies.update(range(node.body[0].lineno, _lines(node).stop))
        elif isinstance(node, ast.expr) and type(node) in _EXPRESSIONS:
            found.setdefault(_EXPRESSIONS[type(node)], set()).update(_lines(node))
    outside: set[int] = set()
    for statement in tree.body:
        if any(isinstance(node, _Acts) or _reads_name(node) for node in ast.walk(statement)):
            outside.update(_lines(statement))
    found[_MODULE] = outside - bodies
    return found


def _lines(node: ast.stmt | ast.expr) -> range:
    """All that it covers; of a function or class its decorators too."""
    above = [each.lineno for each in getattr(node, "decorator_list", ())]
    return range(min([node.lineno, *above]), (node.end_lineno or node.lineno) + 1)


def _reads_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)


def _unchanged(file: str, collected_at: float) -> bool:
    try:
        return os.stat(file).st_mtime <= collected_at
    except OSError:
        return False
