"""Reads the user's source around a line: the branches and loops it stands in, and the ways past it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from rankscope.diagnosis.source.branches import Branch
from rankscope.diagnosis.source.handed_over import handed_over
from rankscope.diagnosis.source.held_locks import held_already
from rankscope.diagnosis.source.losses import computed_at, fed_at
from rankscope.diagnosis.source.raised_exits import raised_exits
from rankscope.diagnosis.source.rank_names import RANK_WORD, RankNames
from rankscope.diagnosis.source.still_to_come import still_calls
from rankscope.diagnosis.source.surroundings import NOTHING, Surroundings, surroundings
from rankscope.diagnosis.source.syntax import in_comprehension, parsed
from rankscope.evidence.model import Evidence, Frame

__all__ = ["Branch", "CodeReader", "Surroundings"]


class CodeReader:
    """Sites are the user's frames above a call, innermost first."""

    def __init__(self, evidence: Evidence) -> None:
        self._program = _read(tuple((source.file, source.text) for source in evidence.sources))

    def around(self, frame: Frame | None, callee: str = "") -> Surroundings:
        """What is known of the source at a frame; nothing where the source is missing or does not parse.

        `callee`, the function that the line called, tells which of several calls on it is meant.
        """
        return NOTHING if frame is None else self._program.around(frame.file, frame.line, frame.function, callee)

    def speaks_of_rank(self, text: str) -> bool:
        return bool(RANK_WORD.search(text))

    def guard(self, site: Iterable[Frame]) -> tuple[Frame, Branch] | None:
        """The condition under which a call is reached: the innermost one that speaks of the rank, in any of the
        user's frames, else the innermost of the innermost frame."""
        first: tuple[Frame, Branch] | None = None
        for depth, (frame, around) in enumerate(self._each(site)):
            for branch in around.guards:
                if branch.on_rank:
                    return frame, branch
                # That a loop goes on is the least that a call in it depends on.
                if depth == 0 and (first is None or (first[1].kind == "while" and branch.kind != "while")):
                    first = frame, branch
        return first

    def way_past(self, site: Iterable[Frame]) -> tuple[Frame, Branch] | None:
        """What lets a rank pass by a call, in any of the user's frames: a condition on the rank before another, and
        that before a handler that goes on after a failure."""
        first: tuple[Frame, Branch] | None = None
        for depth, (frame, around) in enumerate(self._each(site)):
            # What the line calls may fail before it comes to the call.
            for branch in (*around.passes, *(around.swallowed if depth else ())):
                if branch.on_rank:
                    return frame, branch
                if first is None or (_is_failure(first[1]) and not _is_failure(branch)):
                    first = frame, branch
        return first

    def nearest_condition(self, site: Iterable[Frame]) -> tuple[Frame, Branch] | None:
        """The innermost condition on the way to a call, in any of the user's frames."""
        found = ((frame, branch) for frame, around in self._each(site) for branch in _choices(around))
        return next(found, None)

    def stands_under(self, found: tuple[Frame, Branch], site: Iterable[Frame]) -> bool:
        """Whether another site depends on the same condition, on the same side of it."""
        where, branch = found
        return any(
            frame.file == where.file and (each.node, each.side) == (branch.node, branch.side)
            for frame, around in self._each(site)
            for each in around.guards
        )

    def _each(self, site: Iterable[Frame]) -> Iterable[tuple[Frame, Surroundings]]:
        callee = ""
        for frame in site:
            yield frame, self.around(frame, callee)
            callee = frame.function

    def opposite_branches(self, one: tuple[Frame, ...], other: tuple[Frame, ...]) -> Branch | None:
        """The condition of which two call sites are the two branches."""
        if not one or not other or one[0].file != other[0].file:
            return None
        mine = {branch.node: branch for branch in self.around(one[0]).guards}
        for branch in self.around(other[0]).guards:
            if branch.node in mine and mine[branch.node].side != branch.side:
                return branch
        return None

    def condition_of(self, frame: Frame, past: Frame | None = None) -> Branch | None:
        """The innermost condition that a line depends on, and the other line, of the same function, does not."""
        shared = {(branch.node, branch.side) for branch in self.around(past).guards}
        own = [branch for branch in _choices(self.around(frame)) if (branch.node, branch.side) not in shared]
        return own[0] if own else next(iter(self.around(frame).passes), None)

    def flows_on(self, frame: Frame, later: Frame) -> bool:
        """Whether a line under a condition of its own is followed by the later line, of the same function, in the same
        round of their loops, whatever happens."""
        if (frame.file, frame.function) != (later.file, later.function) or frame.line >= later.line:
            return False
        here, there = self.around(frame), self.around(later)
        outer = {(branch.node, branch.side) for branch in there.guards}
        own = [branch for branch in here.guards if (branch.node, branch.side) not in outer]
        if not own or len(own) + len(outer) != len(here.guards) or here.handling:
            return False
        if here.loops[len(here.loops) - len(there.loops) :] != there.loops:
            return False
        first = min(branch.line for branch in own)
        return not any(first <= branch.line < later.line for branch in there.passes)

    def still_to_come(self, call: Sequence[Frame], op: str, site: Sequence[Frame]) -> bool:
        """Whether one who stands at a site will make the call, or another to the same functions, further on: it has not
        passed it by, it only comes to it later."""
        names, around = ({frame.function.rpartition(".")[2] for frame in each} for each in (call, site))
        wanted = names - around or {op}
        trees = ((self._program.trees.get(frame.file), frame.line) for frame in site)
        return any(tree is not None and still_calls(tree, line, wanted) for tree, line in trees)

    def repeats(self, frame: Frame) -> bool:
        """Whether a line is run several times in its function: in a loop, or in a comprehension."""
        tree = self._program.trees.get(frame.file)
        return bool(self.around(frame).loops) or (tree is not None and in_comprehension(tree, frame.line))

    def tensor_at(self, frame: Frame) -> str:
        """The variable that is handed over first by the call on a line: `x` of `all_reduce(x.clamp_(0), ...)`; empty
        where there is none, or more than one call hands something over."""
        tree = self._program.trees.get(frame.file)
        return "" if tree is None else handed_over(tree, frame.line)

    def held_already(self, frames: Sequence[Frame]) -> Frame | None:
        """Where the lock that the first of these frames, innermost first, waits for was taken by the same thread."""
        return held_already(frames, self._program.trees.get)

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

    def ended_loop(self, inside: Sequence[Frame], outside: Sequence[Frame]) -> tuple[Frame, int] | None:
        """The loop (frame, first line) around one call that is not around the other, whose rank had made the first one
        just before: what led into the loop does not matter then. Nothing in the loop leads past its call, and the other
        call depends on nothing."""
        pairs = zip(reversed(inside), reversed(outside), strict=False)
        parted = next((at for at, (one, two) in enumerate(pairs) if (one.file, one.line) != (two.file, two.line)), None)
        if parted is None:
            return None
        inner, (*called, other) = inside[: len(inside) - parted], outside[: len(outside) - parted]
        if any(map(self._conditional, called)) or self._depends(other, inner[-1]) or self.around(other).handling:
            return None
        for depth, frame in enumerate(inner):
            around = self.around(frame)
            for first, last in around.loops:
                if frame is inner[-1] and frame.file == other.file and first <= other.line <= last:
                    continue
                leads_past = [branch for branch in (*_choices(around), *around.passes) if branch.line > first]
                sure = not leads_past and not any(map(self._conditional, inner[:depth]))
                return (frame, first) if sure else None
        return None

    def _conditional(self, frame: Frame) -> bool:
        around = self.around(frame)
        return bool(_choices(around) or around.passes or around.handling)

    def _depends(self, frame: Frame, other: Frame) -> bool:
        """Whether a line depends on a condition that does not also hold the other line."""
        shared = {(branch.node, branch.side) for branch in self.around(other).guards}
        return any((branch.node, branch.side) not in shared for branch in _choices(self.around(frame)))

    def computed_at(self, frame: Frame) -> int | None:
        """The line that computed what is differentiated at a frame; None where the source does not tell."""
        tree = self._program.trees.get(frame.file)
        return None if tree is None else computed_at(tree, frame.line)

    def fed_at(self, frame: Frame) -> int | None:
        """The line on which the batch entered what is differentiated at a frame."""
        tree = self._program.trees.get(frame.file)
        return None if tree is None else fed_at(tree, frame.line)

    def exits_by_raise(self) -> tuple[tuple[str, int, str, int | None], ...]:
        """Every `raise SystemExit(...)` of the known files: file, line, function, and its code where that is written
        there (None: it is computed, or a text, which ends a program with 1)."""
        return tuple((file, *raised) for file, tree in self._program.trees.items() for raised in raised_exits(tree))


class _Program:
    """The files that parse."""

    def __init__(self, sources: Sequence[tuple[str, str]]) -> None:
        self.trees = {file: tree for file, text in sources if (tree := parsed(text)) is not None}
        self._known: RankNames | None = None
        self._around: dict[tuple[str, int, str, str], Surroundings] = {}

    def around(self, file: str, line: int, function: str, callee: str) -> Surroundings:
        tree = self.trees.get(file)
        if tree is None:
            return NOTHING
        key = file, line, function, callee
        found = self._around.get(key)
        if found is None:
            try:
                if self._known is None:
                    self._known = RankNames(self.trees.values())
                found = surroundings(tree, self._known, line, function, callee)
            except RecursionError:  # expressions of a thousand terms
                found = NOTHING
            self._around[key] = found
        return found


def _choices(around: Surroundings) -> list[Branch]:
    """The conditions without those of loops: who has left a loop may have come to its end."""
    return [branch for branch in around.guards if branch.kind != "while"]


def _is_failure(branch: Branch) -> bool:
    return branch.kind in ("except", "suppress", "assert", "raise")


@lru_cache(maxsize=4)
def _read(sources: tuple[tuple[str, str], ...]) -> _Program:
    """Rules of one diagnosis read the same files."""
    return _Program(sources)
