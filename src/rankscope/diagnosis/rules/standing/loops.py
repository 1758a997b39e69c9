"""Reads the loop of the user's code that a rank is in: does it only test something and sleep, and can it end?"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Literal

import msgspec

from rankscope.diagnosis.source.syntax import parsed
from rankscope.evidence.model import Evidence, Frame

Until = Literal["vanishes", "appears", "true"]
_PATH_TESTS = frozenset({"exists", "lexists", "isfile", "is_file", "isdir", "is_dir", "access"})
_MAKES = frozenset({"open", "mkdir", "makedirs", "link", "symlink", "touch", "rename"})
"""What fails where the path is there already, and so takes a lock file."""
_TAKEN = frozenset({"FileExistsError", "OSError", "IOError", "PermissionError"})
_SLEEPS = frozenset({"sleep", "wait"})
_SAYS = frozenset(
    {
        *("print", "log", "debug", "info", "warning", "error", "flush", "write", "update"),
        *("time", "monotonic", "perf_counter", "join", "Path", "str", "len", "format", "round", "int", "float"),
    }
)
_Loop = ast.While | ast.For | ast.AsyncFor
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


class Loop(msgspec.Struct, frozen=True):
    """A loop of the user's code."""

    file: str
    first: int
    last: int
    test: str
    """What it goes on testing, quoted; empty for a loop over something."""
    only_tests: bool
    """Nothing in it but tests, sleeps and words."""
    sleeps: bool
    until: Until
    """What ends it, where it only tests."""
    endless: bool
    """Nothing in it leaves it, or changes what its condition is about: it has nothing in it, or what it does is about
    other things."""


def loop_at(frame: Frame, evidence: Evidence) -> Loop | None:
    """The innermost loop around the frame's line, in its own function; None without one, or without its source."""
    return next(iter(loops_at(frame, evidence)), None)


def loops_at(frame: Frame, evidence: Evidence) -> tuple[Loop, ...]:
    """All loops around the frame's line in its own function, innermost first."""
    source = next((each for each in evidence.sources if each.file == frame.file), None)
    return () if source is None else _loops(source.file, source.text, source.first_line - 1, frame.line)


@lru_cache(maxsize=256)
def _loops(file: str, text: str, offset: int, line: int) -> tuple[Loop, ...]:
    """Around a line, innermost first, those of enclosing functions left out."""
    tree = parsed(text)
    found: list[_Loop] = []
    function: ast.AST | None = None
    node: ast.AST | None = tree
    while node is not None:
        if isinstance(node, _Function):
            found, function = [], node
        elif isinstance(node, _Loop) and not any(_holds(each, line - offset) for each in node.orelse):
            found.append(node)
        node = next((child for child in ast.iter_child_nodes(node) if _holds(child, line - offset)), None)
    local = _bound_in(function) if function is not None else frozenset()
    return tuple(_read(loop, file, offset, local) for loop in reversed(found))


def _bound_in(function: ast.AST) -> frozenset[str]:
    """Names that only the function itself can bind."""
    nodes = list(ast.walk(function))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    shared = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    return frozenset(bound - shared)


def _holds(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None or last is None:
        # Handlers' bodies hang on nodes with lines; operators and contexts have none and hold nothing.
        return any(_holds(child, line) for child in ast.iter_child_nodes(node))
    return bool(first <= line <= last)


def _read(loop: _Loop, file: str, offset: int, local: frozenset[str]) -> Loop:
    test, until = _waits_for(loop)
    only_tests = _only_tests(loop)
    return Loop(
        file=file,
        first=loop.lineno + offset,
        last=(loop.end_lineno or loop.lineno) + offset,
        test=test,
        only_tests=only_tests,
        sleeps=any(_name(call) in _SLEEPS for call in _calls(loop)),
        until=until,
        endless=isinstance(loop, ast.While) and (_empty(loop) or (not _leaves(loop) and _constant(loop, local))),
    )


def _calls(node: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


def _name(call: ast.Call) -> str:
    called = call.func
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _only_tests(loop: _Loop) -> bool:
    """A test may call what it likes; the rest may only sleep, speak, count, and leave."""
    tested = {name.id for test in _tests(loop) for name in ast.walk(test) if isinstance(name, ast.Name)}
    if isinstance(loop, ast.For | ast.AsyncFor) and not _is_count(loop.iter):
        return False
    return all(_harmless(statement, tested) for statement in loop.body)


def _is_count(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _name(node) in {"range", "count"}


def _harmless(statement: ast.stmt, tested: set[str]) -> bool:
    if isinstance(statement, ast.Pass | ast.Break | ast.Continue | ast.Return | ast.Raise):
        return True
    if isinstance(statement, ast.If):
        return all(_harmless(each, tested) for each in (*statement.body, *statement.orelse))
    if isinstance(statement, ast.Try):
        inner = [each for handler in statement.handlers for each in handler.body]
        return all(
            _harmless(each, tested) or _takes_path(each)
            for each in (*statement.body, *inner, *statement.orelse, *statement.finalbody)
        )
    if isinstance(statement, ast.Expr):
        value = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
        return not isinstance(value, ast.Call) or (
            _name(value) in _SLEEPS | _SAYS and all(_name(call) in _SLEEPS | _SAYS for call in _calls(value))
        )
    if isinstance(statement, ast.AugAssign):
        return not _calls(statement)
    if isinstance(statement, ast.Assign):
        names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
        called = {_name(call) for call in _calls(statement)}
        return called <= _SAYS or bool(names & tested)
    return False


def _takes_path(statement: ast.stmt) -> bool:
    return any(_name(call) in _MAKES for call in _calls(statement))


def _tests(loop: _Loop) -> list[ast.expr]:
    found = [loop.test] if isinstance(loop, ast.While) else []
    return found + [each.test for each in ast.walk(loop) if isinstance(each, ast.If)]


def _waits_for(loop: _Loop) -> tuple[str, Until]:
    """The test that ends the loop, and what becomes true with it."""
    if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant):
        return _quoted(loop.test), _until(loop.test, goes_on=True)
    for node in ast.walk(loop):
        if isinstance(node, ast.If) and any(isinstance(each, ast.Break | ast.Return) for each in node.body):
            until = _until(node.test, goes_on=False)
            if until != "true":
                return _quoted(node.test), until
    for node in ast.walk(loop):
        if isinstance(node, ast.Try) and any(_takes_path(each) for each in node.body) and _retries(node):
            made = next(call for each in node.body for call in _calls(each) if _name(call) in _MAKES)
            return _quoted(made), "vanishes"
    test = next(
        (
            node.test
            for node in ast.walk(loop)
            if isinstance(node, ast.If) and any(isinstance(each, ast.Break | ast.Return) for each in node.body)
        ),
        None,
    )
    return (_quoted(test) if test is not None else ""), "true"


def _until(test: ast.expr, *, goes_on: bool) -> Until:
    """What happens to a path: `while exists(p)` goes on until it vanishes, `if exists(p): break` until it appears."""
    if isinstance(test, ast.BoolOp):
        # Beside a time limit or a counter, the part about a path tells.
        parts = {_until(value, goes_on=goes_on) for value in test.values} - {"true"}
        return parts.pop() if len(parts) == 1 else "true"
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inside = _until(test.operand, goes_on=goes_on)
        swapped: dict[Until, Until] = {"vanishes": "appears", "appears": "vanishes"}
        return swapped.get(inside, "true")
    if isinstance(test, ast.Call) and _name(test) in {"any", "all"} and test.args:
        inner = next((call for call in _calls(test.args[0]) if _name(call) in _PATH_TESTS), None)
        return "true" if inner is None else "vanishes" if goes_on else "appears"
    if isinstance(test, ast.Call) and _name(test) in _PATH_TESTS:
        return "vanishes" if goes_on else "appears"
    return "true"


def _retries(statement: ast.Try) -> bool:
    """The path is there already: sleeps, and tries again."""
    for handler in statement.handlers:
        names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else set()
        leaves = any(isinstance(each, ast.Raise | ast.Return | ast.Break) for each in handler.body)
        if names & _TAKEN and not leaves:
            return True
    return False


def _quoted(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 80 else text[:77] + "..."


def _empty(loop: ast.While) -> bool:
    """`while not ready(): pass`: it can only wait for others to change something, and burns a core meanwhile."""
    return all(isinstance(each, ast.Pass | ast.Continue) for each in loop.body)


def _leaves(loop: ast.While) -> bool:
    """A statement that ends the loop, other than its condition."""
    nodes = [each for statement in loop.body for each in ast.walk(statement)]
    return any(isinstance(each, ast.Break | ast.Return | ast.Raise | ast.Yield | ast.YieldFrom) for each in nodes)


def _constant(loop: ast.While, local: frozenset[str]) -> bool:
    """Nothing in the loop changes what its condition is about: its names are neither bound there, nor is a method of
    theirs called, nor are they handed to anybody. Where the loop calls something, only names of its own function are
    safe from it, and a plain `while True` may be left by what is raised there."""
    calls = any(_calls(statement) for statement in loop.body)
    names = {node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)}
    through = any(isinstance(node, ast.Attribute | ast.Subscript) for node in ast.walk(loop.test))
    if _calls(loop.test) or (calls and (through or not names or not names <= local)):
        return False
    return not any(_touches(node, names) for statement in loop.body for node in ast.walk(statement))


def _touches(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Attribute | ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and _root(node) in names
    if isinstance(node, ast.Call):
        told = (*node.args, *(keyword.value for keyword in node.keywords), node.func)
        return any(isinstance(each, ast.Name) and each.id in names for part in told for each in ast.walk(part))
    return isinstance(node, ast.Await | ast.Yield | ast.YieldFrom)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
