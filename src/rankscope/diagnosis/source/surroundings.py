"""What a line of the user's source stands in: conditions, loops, handlers; and what leads past it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from rankscope.diagnosis.source.branches import Branch, Place
from rankscope.diagnosis.source.conditions import conditions, way_to_call
from rankscope.diagnosis.source.rank_names import RankNames
from rankscope.diagnosis.source.syntax import Function
from rankscope.diagnosis.source.ways_past import case_branch, caught, swallowing, ways_past

_Loop = ast.For | ast.AsyncFor | ast.While


class Surroundings(msgspec.Struct, frozen=True):
    function: str
    guards: tuple[Branch, ...]
    """Conditions the line depends on, innermost first."""
    passes: tuple[Branch, ...]
    """What comes earlier in the same function and may lead past the line, innermost first."""
    loops: tuple[tuple[int, int], ...]
    """First and last line of the loops around it, innermost first."""
    handling: bool = False
    """In an `except` branch that does not raise again: the exception has been dealt with."""
    swallowed: tuple[Branch, ...] = ()
    """Handlers around it, in a loop, that go on when the line, or what it calls, fails."""


NOTHING = Surroundings(function="", guards=(), passes=(), loops=())


def surroundings(tree: ast.Module, known: RankNames, line: int, function: str, callee: str) -> Surroundings:
    """`function` and `callee`, where they are known, tell which of several calls on one line is meant."""
    path = list(_path_to(tree, line))
    start = max((at for at, node in enumerate(path) if isinstance(node, Function | ast.Module)), default=0)
    inner = path[start:]
    place = Place(known, [node for node in reversed(path) if isinstance(node, Function | ast.Module)])
    way = way_to_call(inner[-1], line, function, callee)
    if way and isinstance(way[0], ast.Lambda):
        found = tuple(conditions(way, Place(known, (way[0], *place.scopes))))
        return Surroundings(function, tuple(reversed(found)), (), ())
    guards = [*_decorators(inner[0], place)]
    passes: list[Branch] = []
    loops: list[tuple[int, int]] = []
    swallowed: list[Branch] = []
    handling = False
    for parent, child in pairwise(inner):
        guards.extend(_guards(parent, child, place))
        passes.extend(ways_past(parent, child, place))
        if loops:
            swallowed.extend(swallowing(parent, child, place))
        if isinstance(parent, _Loop):
            loops.append((parent.lineno, parent.end_lineno or parent.lineno))
        handling = handling or _deals_with_it(parent, child)
    if isinstance(inner[-1], _Loop):
        loops.append((inner[-1].lineno, inner[-1].end_lineno or inner[-1].lineno))
    guards.extend(conditions(way, place))
    return Surroundings(
        function=getattr(inner[0], "name", "<module>"),
        guards=tuple(reversed(guards)),
        passes=tuple(reversed(passes)),
        loops=tuple(reversed(loops)),
        handling=handling,
        swallowed=tuple(reversed(swallowed)),
    )


def _path_to(node: ast.AST, line: int) -> Iterator[ast.AST]:
    """The statements around a line, outermost first."""
    yield node
    for child in _statements(node):
        if child.lineno <= line <= (child.end_lineno or child.lineno):
            yield from _path_to(child, line)
            return


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, ())
        yield from (child for child in (block if isinstance(block, list) else ()) if isinstance(child, ast.stmt))
    for handler in getattr(node, "handlers", ()):
        yield from handler.body
    for case in getattr(node, "cases", ()):
        yield from case.body


def _decorators(function: ast.AST, place: Place) -> Iterator[Branch]:
    for decorator in getattr(function, "decorator_list", ()):
        if place.known.reserves(decorator):
            yield place.worded("decorator", decorator, ast.unparse(decorator), "body")


def _guards(parent: ast.AST, child: ast.AST, place: Place) -> Iterator[Branch]:
    if isinstance(parent, ast.If):
        if _holds(parent.body, child):
            yield place.branch("if", parent, parent.test, "body")
        else:
            yield place.branch("else", parent, parent.test, "orelse", holds=False)
    elif isinstance(parent, ast.While):
        if _holds(parent.body, child) and not isinstance(parent.test, ast.Constant):
            yield place.branch("while", parent, parent.test, "body")
    elif isinstance(parent, ast.Match):
        for number, case in enumerate(parent.cases):
            if _holds(case.body, child):
                yield case_branch(parent, number, f"case {number}", place)
    for handler in getattr(parent, "handlers", ()):
        if _holds(handler.body, child):
            yield place.worded("except", handler, caught(handler), "except")


def _deals_with_it(parent: ast.AST, child: ast.AST) -> bool:
    for handler in getattr(parent, "handlers", ()):
        if _holds(handler.body, child):
            return not any(isinstance(node, ast.Raise) for each in handler.body for node in ast.walk(each))
    return False


def _holds(block: Sequence[ast.stmt], child: ast.AST) -> bool:
    return any(child is statement for statement in block)
