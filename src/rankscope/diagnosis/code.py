"""Reads the user's source around a line: the branches and loops it stands in, and the ways past it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from rankscope.diagnosis.raised_exits import raised_exits
from rankscope.diagnosis.rank_names import rank_names
from rankscope.evidence.model import Evidence, Frame

_RANK_WORD = re.compile(
    r"(?i)(?<![a-z])(?:\w*_)?(?:rank|rank0|rank_?zero|is_?main\w*|main_?process|is_?master|master|global_zero|is_?chief|"
    r"is_?leader|is_?primary)(?![a-z])|get_rank|is_global_zero|is_main_process|local_rank|isend|rank_id"
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
_Loop = ast.For | ast.AsyncFor | ast.While
_Variable = ast.Name | ast.Attribute


@dataclass(frozen=True, slots=True)
class Branch:
    """An `if` that a line stands under, or that lets a rank pass by it."""

    line: int
    test: str
    on_rank: bool
    """The test speaks of the rank."""
    node: int
    """Identity of the statement, to recognise two branches of one `if`."""
    side: str
    """`body`, `orelse`, or the kind of the way past: `return`, `continue`, `break`."""
    names: frozenset[str] = frozenset()
    """Variables of the test."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    function: str
    guards: tuple[Branch, ...]
    """Conditions the line depends on, innermost first."""
    passes: tuple[Branch, ...]
    """Earlier `if …: return/continue/break` in the same function that lead past the line."""
    loops: tuple[tuple[int, int], ...]
    """First and last line of the loops around it, innermost first."""
    handling: bool = False
    """In an `except` branch that does not raise again: the exception has been dealt with."""


_NOTHING = Surroundings(function="", guards=(), passes=(), loops=())


class CodeReader:
    def __init__(self, evidence: Evidence) -> None:
        self._texts = {source.file: source.text for source in evidence.sources}

    def around(self, frame: Frame | None) -> Surroundings:
        """What is known of the source at a frame; nothing where the source is missing or does not parse."""
        if frame is None or frame.file not in self._texts:
            return _NOTHING
        tree = _parse(self._texts[frame.file])
        return _NOTHING if tree is None else _surroundings(tree, frame.line)

    def speaks_of_rank(self, text: str) -> bool:
        return bool(_RANK_WORD.search(text))

    def guard(self, site: Iterable[Frame]) -> tuple[Frame, Branch] | None:
        """The condition under which a call is reached: the innermost one that speaks of the rank, in any of the
        user's frames, else the innermost of the innermost frame."""
        first: tuple[Frame, Branch] | None = None
        for depth, frame in enumerate(site):
            for branch in self.around(frame).guards:
                if branch.on_rank:
                    return frame, branch
                if depth == 0 and first is None:
                    first = frame, branch
        return first

    def way_past(self, site: Iterable[Frame]) -> tuple[Frame, Branch] | None:
        """A statement that lets a rank pass by a call, in any of the user's frames; one on the rank is preferred."""
        first: tuple[Frame, Branch] | None = None
        for frame in site:
            for branch in self.around(frame).passes:
                if branch.on_rank:
                    return frame, branch
                if first is None:
                    first = frame, branch
        return first

    def opposite_branches(self, one: tuple[Frame, ...], other: tuple[Frame, ...]) -> Branch | None:
        """The `if` of which two call sites are the two branches."""
        if not one or not other or one[0].file != other[0].file:
            return None
        mine = {branch.node: branch for branch in self.around(one[0]).guards}
        for branch in self.around(other[0]).guards:
            if branch.node in mine and mine[branch.node].side != branch.side:
                return branch
        return None

    def left_loop(self, inside: tuple[Frame, ...], outside: tuple[Frame, ...]) -> tuple[Frame, int] | None:
        """The loop (frame, first line) that one stack stands in and the other has left, and can only have left by its
        end: the call it is at now depends on no condition."""
        for depth, frame in enumerate(inside):
            for at, other in enumerate(outside):
                if other.file != frame.file or other.function != frame.function:
                    continue
                if any(self._conditional(each) for each in outside[:at]) or self.around(other).handling:
                    return None
                if self._depends(other, frame) or self._depends(frame, other):
                    return None
                # A call that depends on a condition may have been passed by without leaving any loop.
                if any(self._conditional(each) for each in inside[:depth]):
                    return None
                for first, last in self.around(frame).loops:
                    if other.line > last:
                        return frame, first
                # The loop may lie in a function that the one is still in and the other has returned from.
                if other.line > frame.line:
                    for callee in inside[:depth]:
                        for first, _ in self.around(callee).loops:
                            return callee, first
                return None
        return None

    def _conditional(self, frame: Frame) -> bool:
        around = self.around(frame)
        return bool(around.guards or around.passes or around.handling)

    def _depends(self, frame: Frame, other: Frame) -> bool:
        """Whether a line depends on a condition that does not also hold the other line."""
        shared = {(branch.node, branch.side) for branch in self.around(other).guards}
        return any((branch.node, branch.side) not in shared for branch in self.around(frame).guards)

    def exits_by_raise(self) -> tuple[tuple[str, int, str, int | None], ...]:
        """Every `raise SystemExit(...)` of the known files: file, line, function, and its code where that is written
        there (None: it is computed, or a text, which ends a program with 1)."""
        found = []
        for file, text in self._texts.items():
            tree = _parse(text)
            if tree is not None:
                found += [(file, *raised) for raised in raised_exits(tree)]
        return tuple(found)


@lru_cache(maxsize=64)
def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _surroundings(tree: ast.Module, line: int) -> Surroundings:
    path = list(_path_to(tree, line))
    start = max((at for at, node in enumerate(path) if isinstance(node, _Function)), default=0)
    inner = path[start:]
    guards: list[Branch] = []
    passes: list[Branch] = []
    loops: list[tuple[int, int]] = []
    handling = False
    for parent, child in zip(inner, [*inner[1:], None], strict=False):
        if isinstance(parent, ast.If) and child is not None:
            in_body = any(child is statement for statement in parent.body)
            in_else = any(child is statement for statement in parent.orelse)
            if in_body or in_else:
                guards.append(_branch(parent, "body" if in_body else "orelse"))
        if isinstance(parent, ast.Try) and child is not None:
            handling = handling or _deals_with_it(parent, child)
        if isinstance(parent, _Loop):
            loops.append((parent.lineno, parent.end_lineno or parent.lineno))
        if child is not None:
            passes.extend(_ways_past(parent, child))
    name = getattr(inner[0], "name", "<module>") if inner else "<module>"
    known = rank_names(tree)
    guards, passes = ([_on_known_rank(branch, known) for branch in found] for found in (guards, passes))
    return Surroundings(
        function=name,
        guards=tuple(reversed(guards)),
        passes=tuple(reversed(passes)),
        loops=tuple(reversed(loops)),
        handling=handling,
    )


def _path_to(node: ast.AST, line: int) -> Iterator[ast.AST]:
    """The statements around a line, outermost first."""
    yield node
    for child in _statements(node):
        if child.lineno <= line <= (child.end_lineno or child.lineno):
            yield from _path_to(child, line)
            return


def _deals_with_it(statement: ast.Try, child: ast.AST) -> bool:
    for handler in statement.handlers:
        if any(child is each for each in handler.body):
            return not any(isinstance(node, ast.Raise) for each in handler.body for node in ast.walk(each))
    return False


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        yield from (child for child in getattr(node, name, ()) if isinstance(child, ast.stmt))
    for handler in getattr(node, "handlers", ()):
        yield from handler.body
    for case in getattr(node, "cases", ()):
        yield from case.body


def _ways_past(parent: ast.AST, child: ast.AST) -> Iterator[Branch]:
    """`if`s before `child` in the same block that leave the block."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, ())
        if not any(statement is child for statement in block):
            continue
        for statement in block:
            if statement is child:
                return
            if isinstance(statement, ast.If):
                for leaving in (*statement.body, *statement.orelse):
                    if isinstance(leaving, ast.Return | ast.Continue | ast.Break):
                        yield _branch(statement, type(leaving).__name__.lower())


def _branch(statement: ast.If, side: str) -> Branch:
    test = ast.unparse(statement.test)
    return Branch(
        line=statement.lineno,
        test=test if len(test) <= 60 else test[:57] + "...",
        on_rank=bool(_RANK_WORD.search(test)),
        node=statement.lineno * 1000 + statement.col_offset,
        side=side,
        names=frozenset(ast.unparse(node) for node in ast.walk(statement.test) if isinstance(node, _Variable)),
    )


def _on_known_rank(branch: Branch, known: frozenset[str]) -> Branch:
    return branch if branch.on_rank or branch.names.isdisjoint(known) else replace(branch, on_rank=True)
