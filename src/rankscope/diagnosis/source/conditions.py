"""Conditions inside one statement: `a and b()`, `flag or sync()`, `b() if a else c`, the `if` of a comprehension."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rankscope.diagnosis.source.branches import Branch, Place
from rankscope.diagnosis.source.rank_names import last_name

_COMMUNICATES = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier|all_?to_?all|gather|scatter|^reduce|send|recv|sync|"
    r"^wait|backward|wait_for_everyone"
)
_Path = tuple[ast.AST, ...]
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
_BELOW = (ast.stmt, ast.ExceptHandler, ast.match_case)
"""Parts of a statement that are statements again."""


def way_to_call(statement: ast.AST, line: int, function: str, callee: str) -> _Path:
    """The expressions from a statement down to the call (or the property) at a line that leads to what is asked about.

    `callee` is the function that was called, where it is known. Of several calls on the line that may be meant, only
    the expressions around all of them are given. A lambda's body counts where `function` is one, and only there: the
    way then begins with it.
    """
    ways = [_inside(way, function) for way in _ways(statement, (statement,))]
    here = [way for way in ways if way and _is_at(way[-1], line)]
    named = [way for way in here if callee and _name(way[-1]) == callee]
    if not named:
        calls = [way for way in here if isinstance(way[-1], ast.Call)]
        calls = [way for way in calls if _begins_at(way[-1], line)] or calls or here
        communicating = [way for way in calls if _COMMUNICATES.search(_name(way[-1]))]
        deciding = {id(part) for way in calls for part in _tests(way)}
        named = communicating or [way for way in calls if not any(id(part) in deciding for part in way)] or calls
    return _common(named)


def conditions(way: Sequence[ast.AST], place: Place) -> Iterator[Branch]:
    """What must hold for the end of the way to be reached, the outermost first."""
    for parent, child in pairwise(way):
        if isinstance(parent, ast.BoolOp) and child is not parent.values[0]:
            before = parent.values[: next(at for at, value in enumerate(parent.values) if value is child)]
            test = before[0] if len(before) == 1 else ast.BoolOp(parent.op, before)
            if isinstance(parent.op, ast.And):
                yield place.branch("and", parent, test, "body")
            else:
                yield place.branch("or", parent, test, "orelse", holds=False)
        elif isinstance(parent, ast.IfExp) and child is not parent.test:
            chosen = child is parent.body
            yield place.branch("ternary", parent, parent.test, "body" if chosen else "orelse", holds=chosen)
        elif isinstance(parent, _Comprehension) and not isinstance(child, ast.comprehension):
            for test in (test for part in parent.generators for test in part.ifs):
                yield place.branch("if", test, test, "body")


def _ways(node: ast.AST, way: _Path) -> Iterator[_Path]:
    """To every call and attribute of the statement itself."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _BELOW):
            continue
        inner = (*way, child)
        if isinstance(child, ast.Call | ast.Attribute):
            yield inner
        yield from _ways(child, inner)


def _inside(way: _Path, function: str) -> _Path:
    lambdas = [at for at, node in enumerate(way) if isinstance(node, ast.Lambda)]
    if function == "<lambda>":
        return way[lambdas[-1] :] if lambdas else ()
    return () if lambdas else way


def _is_at(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.expr) and node.lineno <= line <= (node.end_lineno or node.lineno)


def _begins_at(node: ast.AST, line: int) -> bool:
    """Python gives a call the line on which it begins, or on which its name stands."""
    return isinstance(node, ast.Call) and line in (node.lineno, node.func.end_lineno)


def _name(node: ast.AST) -> str:
    return last_name(node.func if isinstance(node, ast.Call) else node) if isinstance(node, ast.expr) else ""


def _tests(way: _Path) -> Iterator[ast.AST]:
    """The expressions that decide whether the end of the way is reached: a call in one of them is asked first."""
    for parent, child in pairwise(way):
        if isinstance(parent, ast.BoolOp):
            yield from parent.values[: next(at for at, value in enumerate(parent.values) if value is child)]
        elif isinstance(parent, ast.IfExp) and child is not parent.test:
            yield parent.test


def _common(ways: Sequence[_Path]) -> _Path:
    if not ways:
        return ()
    length = 0
    for nodes in zip(*ways, strict=False):
        if any(node is not nodes[0] for node in nodes):
            break
        length += 1
    return ways[0][:length]
