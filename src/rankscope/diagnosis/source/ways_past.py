"""Statements that lead past a later one: `if …: return`, `except …: continue`, an assertion that somebody swallows."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from rankscope.diagnosis.source.branches import Branch, Kind, Place
from rankscope.diagnosis.source.rank_names import last_name
from rankscope.diagnosis.source.syntax import Function

_NOT_FAILURES = frozenset({"StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt", "SystemExit"})
_ENDS_PROCESS = frozenset({"exit", "_exit", "abort", "quit"})
_LEAVING: dict[type[ast.AST], Kind] = {ast.Return: "return", ast.Continue: "continue", ast.Break: "break"}
_Why = Callable[[Kind], Branch]
"""Makes the branch of a way that leaves by `return`, `continue` or `break`."""


def ways_past(parent: ast.AST, child: ast.AST, place: Place) -> Iterator[Branch]:
    """What stands before `child` in its block and may leave it, in the order of the source."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, ())
        if not isinstance(block, list) or not any(statement is child for statement in block):
            continue
        before = block[: next(at for at, statement in enumerate(block) if statement is child)]
        for statement in before:
            yield from _leaves(statement, None, False, place)
        if name == "body" and any(map(_may_fail, before)):
            yield from _failures(before, swallowing(parent, child, place), place)
        return


def swallowing(parent: ast.AST, child: ast.AST, place: Place) -> list[Branch]:
    """Handlers of a `try` around the statement that let the program go on after a failure."""
    if isinstance(parent, ast.With | ast.AsyncWith):
        suppressing = [item.context_expr for item in parent.items if _is_suppress(item.context_expr)]
        return [place.worded("suppress", each, ast.unparse(each), "except") for each in suppressing]
    if not any(child is statement for statement in getattr(parent, "body", ())):
        return []
    return [
        place.worded("except", handler, caught(handler), _how_left(handler.body))
        for handler in getattr(parent, "handlers", ())
        if goes_on(handler)
    ]


def caught(handler: ast.ExceptHandler) -> str:
    return "" if handler.type is None else ast.unparse(handler.type)


def goes_on(handler: ast.ExceptHandler) -> bool:
    """Whether a handler neither raises again nor ends the process; those for ends that are meant do not count."""
    names = {last_name(each) for each in ast.walk(handler.type or ast.Tuple([])) if isinstance(each, ast.expr)}
    if names & _NOT_FAILURES:
        return False
    inner = [node for statement in handler.body for node in ast.walk(statement)]
    return not any(
        isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and last_name(node.func) in _ENDS_PROCESS)
        for node in inner
    )


def _leaves(statement: ast.stmt, why: _Why | None, looped: bool, place: Place) -> Iterator[Branch]:
    """Every way out of the block around the statement; `looped`: below a loop of its own, which takes the others."""
    leaving = _LEAVING.get(type(statement))
    if leaving is not None:
        if why is not None and (leaving == "return" or not looped):
            yield why(leaving)
    elif isinstance(statement, ast.If):
        for block, holds in ((statement.body, True), (statement.orelse, False)):
            yield from _leaves_of(block, _by_if(statement, holds, place), looped, place)
    elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
        yield from _leaves_of(statement.body, why, True, place)
        yield from _leaves_of(statement.orelse, why, looped, place)
    elif isinstance(statement, ast.Match):
        for number, case in enumerate(statement.cases):
            yield from _leaves_of(case.body, _by_case(statement, number, place), looped, place)
    elif not isinstance(statement, Function | ast.ClassDef):
        for name in ("body", "orelse", "finalbody"):
            yield from _leaves_of(getattr(statement, name, ()), why, looped, place)
        for handler in getattr(statement, "handlers", ()):
            if goes_on(handler):
                yield from _leaves_of(handler.body, _by_handler(handler, place), looped, place)


def _leaves_of(block: Sequence[ast.stmt], why: _Why | None, looped: bool, place: Place) -> Iterator[Branch]:
    for statement in block:
        yield from _leaves(statement, why, looped, place)


def _by_if(statement: ast.If, holds: bool, place: Place) -> _Why:
    return lambda leaving: place.branch(leaving, statement, statement.test, leaving, holds=holds)


def _by_case(statement: ast.Match, number: int, place: Place) -> _Why:
    return lambda leaving: case_branch(statement, number, leaving, place)


def _by_handler(handler: ast.ExceptHandler, place: Place) -> _Why:
    return lambda leaving: place.worded("except", handler, caught(handler), leaving)


def case_branch(statement: ast.Match, number: int, side: str, place: Place) -> Branch:
    case = statement.cases[number]
    guard = f" if {ast.unparse(case.guard)}" if case.guard is not None else ""
    words = f"match {ast.unparse(statement.subject)}: case {ast.unparse(case.pattern)}{guard}"
    parts = (statement.subject, case.guard) if case.guard is not None else (statement.subject,)
    return place.worded("case", case.pattern, words, side, parts, position=statement)


def _failures(before: Sequence[ast.stmt], swallowed: Sequence[Branch], place: Place) -> Iterator[Branch]:
    """The handlers that a failure of an earlier statement of the same `try` comes to, and conditions that fail."""
    if not swallowed:
        return
    yield from swallowed
    for statement in before:
        if isinstance(statement, ast.Assert):
            yield place.branch("assert", statement, statement.test, "except", holds=False)
        elif isinstance(statement, ast.If):
            for block, holds in ((statement.body, True), (statement.orelse, False)):
                if any(isinstance(each, ast.Raise) for each in block):
                    yield place.branch("raise", statement, statement.test, "except", holds=holds)


def _how_left(block: Sequence[ast.stmt]) -> str:
    return _LEAVING.get(type(block[-1]), "except") if block else "except"


def _may_fail(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call | ast.Raise | ast.Assert | ast.Subscript) for node in ast.walk(statement))


def _is_suppress(manager: ast.expr) -> bool:
    return isinstance(manager, ast.Call) and last_name(manager.func) == "suppress"
