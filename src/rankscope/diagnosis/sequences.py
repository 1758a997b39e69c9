"""Aligns the ranks' sequences of calls as `diff` aligns files, and finds the first edit: where it began.

All sequences begin at the same place of their group. A call is what it was (operation, size, dtype, root), the path of
the user's code that made it, and the optimizer step. Ranks may make one call from different lines (a broadcast written
twice, under `if` and `else`): that is told from an edit by how the sequences go on. An edit on some ranks is extra
calls, skipped ones, or another call in place of the usual one. After an edit the calls of the ranks no longer belong
together, however long the job goes on: the first edit counts, not the place where the job stopped.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

Kind = Literal["extra", "skipped", "changed", "unclear"]

MOST_EDITED = 12
"""So many calls in a row may be one edit: a whole pass of a loop, an evaluation."""
_FAR_ENOUGH = 24
"""So many calls that agree after an edit show that it was one."""
_PER_CALL = 0.6
"""What a call more in an edit counts, in calls that agree after it."""
_SAME_STEP = 0.5
"""What agreement of the optimizer step adds to that of a call."""
_UNSEEN = -1


class Item(NamedTuple):
    """A call as it is compared. A tuple: one is made for every call of every rank."""

    what: Hashable
    """What must agree between the ranks."""
    path: Hashable
    """Of the user's code; falsy where it is not known, and then it agrees with every other."""
    step: int = -1
    """-1 where it is not known."""


class Class(msgspec.Struct, frozen=True):
    """Ranks that made the same call at the place of the first edit."""

    ranks: tuple[int, ...]
    absent: bool
    """They have not come to that place."""
    kind: Kind | None
    """What they did, seen from the first class; None for that one, and for those absent."""
    count: int = 0
    """How many calls more or fewer."""


class Parting(msgspec.Struct, frozen=True):
    at: int
    """Index of the first edit: before it all sequences agree."""
    classes: tuple[Class, ...]
    """The largest first, those absent last among equals."""

    @property
    def decided(self) -> bool:
        """More than half of the ranks are of one class: the others are the odd ones."""
        return 2 * len(self.classes[0].ranks) > sum(len(each.ranks) for each in self.classes)


class _Edit(msgspec.Struct, frozen=True):
    kind: Kind | Literal["variant"]
    count: int
    weight: float
    to_the_end: bool
    """All that is known of one of the two agrees after it."""


def agreed_length(sequences: Iterable[Sequence[object]]) -> int:
    """So many items, from the beginning on, are the same in all of them."""
    rest = iter(sequences)
    first = next(rest)
    length = len(first)
    for other in rest:
        if first[:length] != other[:length]:
            pairs = zip(first[:length], other, strict=False)
            shorter = min(length, len(other))
            length = next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), shorter)
    return length


def align(sequences: Mapping[int, Sequence[Item | None]]) -> Parting | None:
    """None where the sequences agree as far as all of them go and end together. None in a sequence: not known."""
    return _Alignment(sequences).parting() if len(sequences) > 1 else None


class _Alignment:
    def __init__(self, sequences: Mapping[int, Sequence[Item | None]]) -> None:
        self._items: list[Item] = []
        numbers: dict[Item, int] = {}
        whats: dict[tuple[Hashable, Hashable], int] = {}
        self._calls: dict[int, list[int]] = {}
        """Rank → the numbers of its calls, without their steps."""
        self._steps: dict[int, list[int]] = {}
        for rank, sequence in sequences.items():
            calls, steps = [], []
            for item in sequence:
                if item is None:
                    calls.append(_UNSEEN)
                    steps.append(-1)
                    continue
                number = numbers.get(item)
                if number is None:
                    key = (item.what, item.path)
                    number = whats.setdefault(key, len(self._items))
                    if number == len(self._items):
                        self._items.append(item)
                    numbers[item] = number
                calls.append(number)
                steps.append(item.step)
            self._calls[rank], self._steps[rank] = calls, steps
        self._alike: set[tuple[int, int]] = set()
        """Pairs of calls from different lines that were shown to be one."""
        self._doubtful: list[tuple[int, int, int]] = []
        """Index and two ranks, where calls from different lines met that may be one, or the first edit."""

    def parting(self) -> Parting | None:
        longest = max(len(calls) for calls in self._calls.values())
        for at in range(agreed_length(self._calls.values()), longest):
            classes = self._partition(at)
            if len(classes) == 1:
                continue
            if not self._settled(at, classes):
                return self._earlier(at, classes) or self._at(at, classes)
        return None

    def _partition(self, at: int) -> list[list[int]]:
        """Ranks by the call they made there, the largest class first; absent ranks are one class too."""
        found: dict[int, list[int]] = {}
        for rank, calls in self._calls.items():
            found.setdefault(calls[at] if at < len(calls) else _UNSEEN - 1, []).append(rank)
        if len(found) == 1:
            return list(found.values())
        unseen = found.pop(_UNSEEN, [])
        classes: list[tuple[int, list[int]]] = []
        for number, ranks in sorted(found.items(), key=lambda pair: (pair[0] < 0, -len(pair[1]), pair[1])):
            alike = next((known for known in classes if self._same(known[0], number)), None)
            if alike is None:
                classes.append((number, list(ranks)))
            else:
                alike[1].extend(ranks)
        if unseen and classes:
            classes[0][1].extend(unseen)
        return [ranks for _, ranks in sorted(classes, key=lambda pair: (-len(pair[1]), pair[0] < 0, min(pair[1])))]

    def _same(self, one: int, other: int) -> bool:
        if one == other or _UNSEEN in (one, other):
            return True
        if one < 0 or other < 0:
            return False
        if (one, other) in self._alike:
            return True
        first, second = self._items[one], self._items[other]
        return (not first.path or not second.path) and _fits(first.what, second.what)

    def _settled(self, at: int, classes: list[list[int]]) -> bool:
        """The calls differ by their lines alone, and what follows shows that they are one."""
        first = classes[0][0]
        if any(at >= len(self._calls[ranks[0]]) for ranks in classes):
            return False
        variants = []
        for ranks in classes[1:]:
            edits = self._edits(first, ranks[0], at)
            best = edits[0]
            variant = next((edit for edit in edits if edit.kind == "variant"), None)
            if variant is None or variant.weight < best.weight:
                return False
            if len(edits) > 1 and edits[1].weight > variant.weight - _PER_CALL - 0.01:
                self._doubtful.append((at, first, ranks[0]))
            variants.append((self._calls[first][at], self._calls[ranks[0]][at]))
        for one, other in variants:
            self._alike.update(((one, other), (other, one)))
        return True

    def _at(self, at: int, classes: list[list[int]]) -> Parting:
        first = classes[0][0]
        found = []
        for ranks in classes:
            absent = at >= len(self._calls[ranks[0]])
            kind: Kind | None = None
            count = 0
            if ranks is not classes[0] and not absent and at < len(self._calls[first]):
                edit = next(edit for edit in self._edits(first, ranks[0], at))
                kind, count = ("unclear", 0) if edit.kind == "variant" else (edit.kind, edit.count)
            found.append(Class(tuple(sorted(ranks)), absent, kind, count))
        return Parting(at, tuple(found))

    def _earlier(self, at: int, classes: list[list[int]]) -> Parting | None:
        """In a run of equal calls an edit leaves no mark where it was made, and shows only where the run ends. Two
        things tell its place: the optimizer steps, and a call from another line that was taken for one of the run."""
        found: list[tuple[int, int, int, _Edit]] = []
        first = classes[0][0]
        for ranks in classes[1:]:
            by_steps = self._by_steps(first, ranks[0], at)
            if by_steps is not None:
                found.append((by_steps[0], first, ranks[0], by_steps[1]))
        for doubt, one, other in self._doubtful:
            sides = {next(number for number, ranks in enumerate(classes) if rank in ranks) for rank in (one, other)}
            edits = [e for e in self._edits(one, other, doubt) if e.kind in ("extra", "skipped") and e.to_the_end]
            if len(sides) == 2 and edits:
                found.append((doubt, one, other, edits[0]))
        if not found:
            return None
        place = min(each[0] for each in found)
        parted = self._partition_before(place, classes)
        kinds = {other: edit for at_, _, other, edit in found if at_ == place}
        made = []
        for ranks in parted:
            edit = next((kinds[rank] for rank in ranks if rank in kinds), None)
            kind: Kind | None = None if edit is None or edit.kind == "variant" else edit.kind
            made.append(
                Class(tuple(sorted(ranks)), absent=False, kind=kind, count=edit.count if edit is not None else 0)
            )
        return Parting(place, tuple(made))

    def _partition_before(self, place: int, classes: list[list[int]]) -> list[list[int]]:
        """The classes by call and step at an earlier place: only those that differ there."""
        found: dict[tuple[int, int], list[int]] = {}
        for ranks in classes:
            for rank in ranks:
                found.setdefault((self._calls[rank][place], self._steps[rank][place]), []).append(rank)
        return sorted(found.values(), key=lambda ranks: (-len(ranks), min(ranks)))

    def _by_steps(self, first: int, other: int, at: int) -> tuple[int, _Edit] | None:
        """Where the steps of calls that agree otherwise first differ, if calls more or fewer explain all of it."""
        mine, theirs = self._steps[first], self._steps[other]
        for place in range(min(at, len(mine), len(theirs))):
            if mine[place] == theirs[place] or mine[place] < 0 or theirs[place] < 0:
                continue
            for count in range(1, MOST_EDITED + 1):
                for kind, one, two in (("skipped", place + count, place), ("extra", place, place + count)):
                    length, steps, ended = self._agreement(first, one, other, two, len(mine) + len(theirs))
                    if ended and length > 0 and steps == length:
                        return place, _Edit("skipped" if kind == "skipped" else "extra", count, length, True)
            return None
        return None

    def _edits(self, first: int, other: int, at: int) -> list[_Edit]:
        """What may have happened on `other`, seen from `first`, the best explanation first."""
        mine, theirs = self._calls[first][at], self._calls[other][at]
        fits = min(mine, theirs) >= 0 and _fits(self._items[mine].what, self._items[theirs].what)
        found = [self._edit("variant" if fits else "changed", 0, first, at + 1, other, at + 1)]
        for count in range(1, MOST_EDITED + 1):
            found.append(self._edit("extra", count, first, at, other, at + count))
            found.append(self._edit("skipped", count, first, at + count, other, at))
        found = [edit for edit in found if edit.weight > -_PER_CALL * edit.count] or [_Edit("unclear", 0, 0.0, False)]
        return sorted(found, key=lambda edit: -edit.weight)

    def _edit(
        self,
        kind: Literal["variant", "changed", "extra", "skipped"],
        count: int,
        first: int,
        one: int,
        other: int,
        two: int,
    ) -> _Edit:
        length, steps, ended = self._agreement(first, one, other, two, _FAR_ENOUGH)
        weight = length + _SAME_STEP * steps - _PER_CALL * max(count, kind == "changed")
        return _Edit(kind, count, weight, ended)

    def _agreement(self, first: int, one: int, other: int, two: int, most: int) -> tuple[int, int, bool]:
        """How many calls agree from there on, in how many of them the steps do, and whether they agree to an end."""
        mine, theirs = self._calls[first], self._calls[other]
        my_steps, their_steps = self._steps[first], self._steps[other]
        length = steps = 0
        while length < most and one + length < len(mine) and two + length < len(theirs):
            if not self._same(mine[one + length], theirs[two + length]):
                return length, steps, False
            steps += my_steps[one + length] == their_steps[two + length] >= 0
            length += 1
        ended = one + length >= len(mine) or two + length >= len(theirs)
        return length, steps, ended


def _fits(one: Hashable, other: Hashable) -> bool:
    """Whether two calls may be one collective; what is not known of one (-1, empty) contradicts nothing."""
    if one == other:
        return True
    if not isinstance(one, tuple) or not isinstance(other, tuple) or len(one) != len(other):
        return False
    return all(a == b or a in (-1, "") or b in (-1, "") for a, b in zip(one, other, strict=True))
