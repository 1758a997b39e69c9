"""A lock that a thread waits for and holds itself: `with self.lock:` around a call that takes it once more."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from rankscope.diagnosis.source.syntax import Function, own_nodes
from rankscope.evidence.model import Frame

_MODULES = frozenset({"threading", "multiprocessing", "torch.multiprocessing"})


class _Lock(NamedTuple):
    """`self.name` of a class, or the name of a module."""

    name: str
    owner: ast.ClassDef | None


def held_already(frames: Sequence[Frame], tree_of: Callable[[str], ast.Module | None]) -> Frame | None:
    """Where the thread took the lock that it waits for on the first of these frames, innermost first; None where it is
    another one, may be taken twice, or has been released since, as far as the source tells."""
    if not frames or (tree := tree_of(frames[0].file)) is None:
        return None
    lock = _taken_at(tree, frames[0].line)
    if lock is None or not _is_plain_lock(tree, lock):
        return None
    for at, frame in enumerate(frames):
        if frame.native or frame.file != frames[0].file:
            if lock.owner is not None:
                return None  # what comes back from a library may have come to another object
            continue
        function = _function_at(tree, frame.line)
        if function is None or (at and not _leads_on(tree, lock, frame, frames[at - 1])):
            return None
        taken = _held_at(function, lock, frame.line)
        if taken is not None:
            return Frame(frame.function, frame.file, taken, frame.user)
        if any(_names(call, lock, function, "release") and call.lineno < frame.line for call in _calls(function)):
            return None  # released for a while
    return None


def _taken_at(tree: ast.Module, line: int) -> _Lock | None:
    """By the only `with` or `acquire()` of a line."""
    function = _function_at(tree, line)
    if function is None:
        return None
    taken = [item.context_expr for node in own_nodes(function) if isinstance(node, ast.With) for item in node.items]
    taken += [call.func.value for call in _calls(function) if _is_acquire(call)]  # type: ignore[attr-defined]
    here = [each for each in taken if each.lineno <= line <= (each.end_lineno or each.lineno)]
    return _lock(here[0], function, tree) if len(here) == 1 else None


def _lock(named: ast.expr, function: Function, tree: ast.Module) -> _Lock | None:
    match named:
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == _self(function):
            owner = _class_of(function, tree)
            return None if owner is None else _Lock(attribute, owner)
        case ast.Name(id=name) if name not in _locals(function):
            return _Lock(name, None)
    return None


def _is_plain_lock(tree: ast.Module, lock: _Lock) -> bool:
    """All that is assigned to the name are locks that a thread cannot take twice."""
    if lock.owner is None and not any(_last_name(target) == lock.name for target in _targets(tree.body)):
        return False  # of another function, which may have made several
    made = list(_assigned(tree, lock))
    return bool(made) and all(_makes_lock(value, tree) for value in made)


def _assigned(tree: ast.Module, lock: _Lock) -> Iterator[ast.expr]:
    """Whatever is given to something of that name; in an unusual way, the name itself, which is no lock."""
    for node in ast.walk(lock.owner or tree):
        match node:
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                if _last_name(target) == lock.name:
                    yield value
            case ast.Name(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()) if _last_name(node) == lock.name:
                if not _is_usual(node, lock.owner or tree):
                    yield node


def _targets(body: list[ast.stmt]) -> Iterator[ast.expr]:
    for statement in body:
        if isinstance(statement, ast.Assign):
            yield from statement.targets
        elif isinstance(statement, ast.AnnAssign):
            yield statement.target


def _is_usual(target: ast.expr, within: ast.AST) -> bool:
    return any(
        (isinstance(node, ast.Assign) and node.targets == [target])
        or (isinstance(node, ast.AnnAssign) and node.target is target)
        for node in ast.walk(within)
    )


def _makes_lock(value: ast.expr, tree: ast.Module) -> bool:
    """`threading.Lock()`, or `field(default_factory=threading.Lock)`."""
    if not isinstance(value, ast.Call):
        return False
    if _last_name(value.func) == "field":
        made = [each.value for each in value.keywords if each.arg == "default_factory"]
        return len(made) == 1 and _is_lock_class(made[0], tree)
    return _is_lock_class(value.func, tree)


def _is_lock_class(named: ast.expr, tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        match node, named:
            case ast.ImportFrom(module=str(module), names=names), ast.Name(id=name) if module in _MODULES:
                if any(each.name == "Lock" and (each.asname or each.name) == name for each in names):
                    return True
            case ast.Import(names=names), ast.Attribute(value=value, attr="Lock"):
                base = ast.unparse(value)
                if any(each.name in _MODULES and (each.asname or each.name) == base for each in names):
                    return True
            case _:
                pass
    return False


def _leads_on(tree: ast.Module, lock: _Lock, caller: Frame, callee: Frame) -> bool:
    """Whether it is the same object's lock in both frames: one method called the other on itself."""
    if lock.owner is None:
        return True
    function, called = _function_at(tree, caller.line), _function_at(tree, callee.line)
    if function is None or called is None or _class_of(function, tree) is not lock.owner:
        return False
    own = _self(function)
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == called.name
        and isinstance(node.value, ast.Name)
        and node.value.id == own
        and node.lineno <= caller.line <= (node.end_lineno or node.lineno)
        for node in own_nodes(function)
    )


def _held_at(function: Function, lock: _Lock, line: int) -> int | None:
    """The line of the `with` around a line, or of an `acquire()` before it in a block that holds it."""
    for node in own_nodes(function):
        if isinstance(node, ast.With) and node.body[0].lineno <= line <= (node.end_lineno or node.lineno):
            for item in node.items:
                if _is(item.context_expr, lock, function) and not _released(function, lock, node.lineno, line):
                    return item.context_expr.lineno
    for block in _blocks(function):
        for statement, later in pairwise(block):
            call = statement.value if isinstance(statement, ast.Expr) else None
            if not (isinstance(call, ast.Call) and _is_acquire(call) and _names(call, lock, function, "acquire")):
                continue
            inside = later.lineno <= line <= (block[-1].end_lineno or 0)
            if inside and not _released(function, lock, statement.lineno, line):
                return statement.lineno
    return None


def _released(function: Function, lock: _Lock, first: int, line: int) -> bool:
    return any(first <= call.lineno < line and _names(call, lock, function, "release") for call in _calls(function))


def _blocks(function: Function) -> Iterator[list[ast.stmt]]:
    for node in (function, *own_nodes(function)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _calls(function: Function) -> Iterator[ast.Call]:
    return (node for node in own_nodes(function) if isinstance(node, ast.Call))


def _is_acquire(call: ast.Call) -> bool:
    """One that waits for ever."""
    plain = not call.args and not call.keywords
    return plain and isinstance(call.func, ast.Attribute) and call.func.attr == "acquire"


def _names(call: ast.Call, lock: _Lock, function: Function, method: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == method and _is(call.func.value, lock, function)


def _is(named: ast.expr, lock: _Lock, function: Function) -> bool:
    match named:
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return lock.owner is not None and name == _self(function) and attribute == lock.name
        case ast.Name(id=name):
            return lock.owner is None and name == lock.name and name not in _locals(function)
    return False


def _function_at(tree: ast.Module, line: int) -> Function | None:
    """The innermost function around a line."""
    around = [
        node for node in ast.walk(tree) if isinstance(node, Function) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda function: function.lineno, default=None)


def _class_of(function: Function, tree: ast.Module) -> ast.ClassDef | None:
    return next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and function in node.body), None)


def _self(function: Function) -> str:
    arguments = [*function.args.posonlyargs, *function.args.args]
    return arguments[0].arg if arguments else ""


def _locals(function: Function) -> set[str]:
    of_module = {name for node in own_nodes(function) if isinstance(node, ast.Global) for name in node.names}
    given = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    assigned = {
        node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return (given | assigned) - of_module


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else "?"
