"""The user's source around the lines that matter, as it was when the evidence was taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rankscope.diagnosis.verdict import Where
from rankscope.report.views.incident import Incident
from rankscope.report.views.text import code_line, short_file

Mark = Literal["", "here", "condition"]
Kind = Literal["culprit", "side", "victim", "failed"]

_AROUND = 4
"""Lines before and after the one that matters."""
_REACH = 14
"""A condition so near is shown in one piece with the line."""
_MOST_OF_A_KIND = 3


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    text: str
    mark: Mark = ""


@dataclass(frozen=True, slots=True)
class Excerpt:
    kind: Kind
    ranks: tuple[int, ...]
    """Empty where it is about no rank: the launcher, one that never started."""
    where: Where
    doing: str
    """What they do there, in a few words."""
    lines: tuple[Line | None, ...]
    """None: lines between are left out. Empty where the source is not in the evidence."""
    conditions: tuple[tuple[int, str], ...] = ()
    """Those among the lines, as the code has them."""

    @property
    def file(self) -> str:
        return short_file(self.where.file)


@dataclass(frozen=True, slots=True)
class _Stop:
    """Ranks at one place."""

    kind: Kind
    ranks: tuple[int, ...]
    where: Where
    doing: str


def excerpts(incident: Incident) -> tuple[Excerpt, ...]:
    """Where it began first, then where the others are."""
    stops = [*_culprits(incident)[:_MOST_OF_A_KIND]]
    sides = [_Stop("side", side.ranks, side.where, side.call) for side in incident.verdict.sides if side.where]
    if not stops:
        stops += sides[:_MOST_OF_A_KIND]
    shown = {stop.where for stop in stops}
    told = {rank for stop in stops for rank in stop.ranks}
    stops += [stop for stop in _others(incident, told) if stop.where not in shown][:_MOST_OF_A_KIND]
    sources = {source.file: (source.first_line, source.text.split("\n")) for source in incident.evidence.sources}
    conditions = dict(_conditions(incident.verdict.facts))
    near = {(file, line) for stop in stops for file, line in conditions if _shows(stop.where, file, line)}
    found = []
    for number, stop in enumerate(stops):
        marked = [line for file, line in conditions if file == stop.where.file]
        # A condition far from every line is shown with the first excerpt of its file.
        first = next((at for at, each in enumerate(stops) if each.where.file == stop.where.file), number) == number
        wanted = [
            line
            for line in marked
            if _shows(stop.where, stop.where.file, line) or (first and (stop.where.file, line) not in near)
        ]
        source = sources.get(stop.where.file)
        lines = _lines(source[0], source[1], stop.where.line, wanted) if source is not None else ()
        codes = tuple((line, code_line(conditions[stop.where.file, line])) for line in wanted) if lines else ()
        found.append(Excerpt(stop.kind, stop.ranks, stop.where, stop.doing, lines, codes))
    return tuple(found)


def _culprits(incident: Incident) -> list[_Stop]:
    found: dict[tuple[Where, str], list[int]] = {}
    for each in incident.verdict.culprits:
        if each.where is not None:
            ranks = found.setdefault((each.where, each.doing), [])
            ranks += [each.rank] if each.rank is not None else []
    return [_Stop("culprit", tuple(sorted(ranks)), where, doing) for (where, doing), ranks in found.items()]


def _others(incident: Incident, told: set[int]) -> list[_Stop]:
    found: dict[Where, list[int]] = {}
    for rank in sorted(incident.victims - told):
        at = incident.where(rank)
        if at is not None:
            found.setdefault(at, []).append(rank)
    largest = sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[1]))
    return [_Stop("failed" if _ended(incident, ranks[0]) else "victim", tuple(ranks), at, "") for at, ranks in largest]


def _ended(incident: Incident, rank: int) -> bool:
    seen = incident.seen.get(rank)
    return seen is not None and seen.exit is not None


def _conditions(values: Iterable[dict[str, Any]]) -> Iterator[tuple[tuple[str, int], str]]:
    """File, line and text of every condition among the facts, also of those inside of others."""
    for value in values:
        if value.get("kind") == "condition" and isinstance(value.get("where"), dict):
            yield (value["where"]["file"], value["where"]["line"]), value["code"]
        for inner in value.values():
            if isinstance(inner, dict):
                yield from _conditions((inner,))
            elif isinstance(inner, list):
                yield from _conditions(each for each in inner if isinstance(each, dict))


def _shows(where: Where, file: str, line: int) -> bool:
    return where.file == file and abs(where.line - line) <= _REACH


def _lines(first_line: int, text: Sequence[str], line: int, conditions: Sequence[int]) -> tuple[Line | None, ...]:
    last_line = first_line + len(text) - 1
    if not first_line <= line <= last_line:
        return ()
    wanted = _within_function(first_line, text, line)
    for condition in conditions:
        wanted.update(range(condition - 1, condition + 2))
        # Of two functions, what lies between them is left out.
        between = range(max(first_line, min(condition, line)), min(last_line, max(condition, line)))
        if len(between) <= _REACH and not any(_begins_function(text[at - first_line]) for at in between):
            wanted.update(between)
    numbers = sorted(number for number in wanted if first_line <= number <= last_line)
    while numbers and not text[numbers[0] - first_line].strip():
        numbers.pop(0)
    while numbers and not text[numbers[-1] - first_line].strip():
        numbers.pop()
    indents = [_indent(text[number - first_line]) for number in numbers if text[number - first_line].strip()]
    cut = min(indents, default=0)
    found: list[Line | None] = []
    for number in numbers:
        if found and found[-1] is not None and found[-1].number + 1 < number:
            found.append(None)
        mark: Mark = "here" if number == line else "condition" if number in conditions else ""
        found.append(Line(number, code_line(text[number - first_line].expandtabs(4)[cut:]), mark))
    return tuple(found)


def _within_function(first_line: int, text: Sequence[str], line: int) -> set[int]:
    """The lines around one, without those of the functions before and after its own."""
    inner = _indent(text[line - first_line])
    begin, end = max(first_line, line - _AROUND), min(first_line + len(text) - 1, line + _AROUND)
    for number in range(line - 1, begin - 1, -1):
        if _begins_function(text[number - first_line]) and _indent(text[number - first_line]) < max(inner, 1):
            begin = number
            break
    for number in range(line + 1, end + 1):
        if _begins_function(text[number - first_line]) and _indent(text[number - first_line]) < max(inner, 1):
            end = number - 1
            break
    return set(range(begin, end + 1))


def _begins_function(text: str) -> bool:
    return text.lstrip().startswith(("def ", "async def ", "class ", "@"))


def _indent(text: str) -> int:
    text = text.expandtabs(4)
    return len(text) - len(text.lstrip())
