"""The ranks' collectives side by side, as a diff: the last that agreed, the first that did not, what came after."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from rankscope.diagnosis.divergence import Divergence, Side, find_divergence
from rankscope.diagnosis.sequences import Kind
from rankscope.diagnosis.timeline import NO_EVENTS, Event, Timeline, calls_timeline
from rankscope.diagnosis.wait_graph import entered_nothing
from rankscope.report.views.incident import Incident, Role
from rankscope.report.views.text import place, rank_ranges
from rankscope.report.words.languages import Language

BEFORE, AFTER = 5, 6
_MOST_COLUMNS = 6
Mark = Literal["", "extra", "skipped", "changed", "absent"]


class Cell(msgspec.Struct, frozen=True):
    mark: Mark = ""
    number: int = 0
    """Its place in the group's sequence; 0 in a gap."""
    op: str = ""
    detail: str = ""
    """Elements, type, root."""
    place: str = ""
    done: bool = True
    note: str = ""
    """Of a gap: what it signifies."""


class Column(msgspec.Struct, frozen=True):
    ranks: tuple[int, ...]
    role: Role
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        return rank_ranges(self.ranks)


class CallDiff(msgspec.Struct, frozen=True):
    group: str
    """In words."""
    seq: int
    agreed: int
    """Calls of the group that are known to have been made alike before."""
    first_difference: int
    """Row at which the columns part."""
    columns: tuple[Column, ...]
    left_out: int = 0
    """Ranks in columns that are too many to be shown."""

    @property
    def rows(self) -> range:
        return range(max(len(column.cells) for column in self.columns))


def call_diff(incident: Incident) -> CallDiff | None:
    """Of the group in which the ranks part; None where no sequences are known, or they do not differ."""
    for group in _groups(incident):
        found = incident.case.graph.once(find_divergence, group)
        known = None if found is None else replace(found, sides=tuple(s for s in found.sides if _known(incident, s)))
        if known is not None and len(known.sides) > 1:
            return _diff(incident, known)
    return None


def _known(incident: Incident, side: Side) -> bool:
    """Of a rank that has ended the recorder is lost: it may have made the calls that those of the others hold."""
    if side.event is not None:
        return True
    states = [incident.case.graph.states[rank] for rank in side.ranks]
    return any((state.timeline is not None and state.timeline.newest) or entered_nothing(state) for state in states)


def _groups(incident: Incident) -> list[str]:
    """Those that ranks wait in first, of these the culprits'; then all others by their use."""
    states = incident.case.graph.states
    waits = [(rank in incident.culprits, state.wait) for rank, state in states.items() if state.wait is not None]
    ordered = [wait.group for guilty, wait in sorted(waits, key=lambda pair: not pair[0]) if wait.group]
    ordered += [group for state in states.values() if state.timeline is not None for group in state.timeline.newest]
    return list(dict.fromkeys(ordered))


_OTHER_WAY: dict[Kind | None, Kind | None] = {"extra": "skipped", "skipped": "extra"}


def _sides(incident: Incident, found: Divergence) -> tuple[Side, ...]:
    """Seen from the side that is right: as a rule the largest, and the smaller of two where the larger is to blame."""
    if len(found.sides) != 2:
        return found.sides
    usual, odd = found.sides
    if _role(incident, usual) == "culprit" and _role(incident, odd) != "culprit":
        kind = _OTHER_WAY.get(odd.kind, odd.kind)
        usual, odd = replace(odd, kind=None, count=0), replace(usual, kind=kind, count=odd.count)
    if odd.kind in ("changed", "unclear") and _role(incident, odd) == "culprit":
        by_code = _by_condition(incident, usual, odd)
        odd = replace(odd, kind=by_code, count=1) if by_code is not None else odd
    return usual, odd


def _by_condition(incident: Incident, usual: Side, odd: Side) -> Kind | None:
    """Where the job stopped at the edit itself, nothing that follows tells a call more from one fewer: the condition
    does, by which the verdict explains it."""
    for fact in incident.verdict.facts:
        target = fact.get("target")
        if fact.get("kind") != "condition" or not isinstance(target, dict):
            continue
        if fact["effect"] == "leads-to" and _made_at(odd, target):
            return "extra"
        if fact["effect"] != "leads-to" and _made_at(usual, target):
            return "skipped"
    return None


def _made_at(side: Side, target: dict[str, Any]) -> bool:
    return any((frame.file, frame.line) == (target["file"], target["line"]) for frame in side.site)


def _diff(incident: Incident, found: Divergence) -> CallDiff:
    words = incident.words
    label = words.label
    timelines = _timelines(incident, found)
    shown = _sides(incident, found)[:_MOST_COLUMNS]
    usual = shown[0]
    extra = max((side.count for side in shown if side.kind == "extra"), default=0)
    skipped = max((side.count for side in shown if side.kind == "skipped"), default=0)
    changed = any(side.kind in ("changed", "unclear") for side in shown)
    columns = []
    for side in shown:
        # Of ranks that made the same calls, the first whose calls are known speaks for all.
        known = (timelines[rank].of(found.group) for rank in side.ranks if rank in timelines)
        events = next(filter(None, known), NO_EVENTS)
        before = [_cell(events.get(found.seq - back), words) for back in range(BEFORE, 0, -1) if found.seq - back > 0]
        at = found.seq
        cells = list(before)
        if extra:
            taken = side.count if side.kind == "extra" else 0
            cells += [_marked(events.get(at + step), "extra", words) for step in range(taken)]
            cells += [Cell(note=label("makes no such call")) for _ in range(extra - taken)]
            at += taken
        if skipped:
            left = side.count if side.kind == "skipped" else 0
            cells += [_cell(events.get(at + step), words) for step in range(skipped - left)]
            cells += [Cell("skipped", note=label("left out")) for _ in range(left)]
            at += skipped - left
        for step in range(AFTER):
            event = events.get(at + step)
            differs = changed and step == 0 and side is not usual
            cells.append(_marked(event, "changed", words) if differs and event is not None else _cell(event, words))
        cells = _trimmed(cells, side, words)
        columns.append(Column(side.ranks, _role(incident, side), tuple(cells)))
    left_out = sum(len(side.ranks) for side in found.sides[_MOST_COLUMNS:])
    before_rows = min(BEFORE, found.seq - 1)
    return CallDiff(_group_words(incident, found.group), found.seq, found.agreed, before_rows, _even(columns), left_out)


def _timelines(incident: Incident, found: Divergence) -> dict[int, Timeline]:
    """By the same count as the divergence: the probe's where some rank has no recorder any more."""
    states = incident.case.graph.states
    ranks = [rank for side in found.sides for rank in side.ranks]
    known = {rank: timeline for rank in ranks if (timeline := states[rank].timeline) is not None}
    if len({timeline.recorded for timeline in known.values() if timeline.newest}) < 2:
        return known
    return {rank: calls_timeline(seen) for rank in ranks if (seen := states[rank].seen) is not None}


def _role(incident: Incident, side: Side) -> Role:
    roles = {incident.role(rank) for rank in side.ranks}
    return "culprit" if "culprit" in roles else "victim" if "victim" in roles else "other"


def _cell(event: Event | None, words: Language) -> Cell:
    if event is None:
        return Cell()
    elements = words.counted(event.numel, "{count} element", "{count} elements")
    details = [elements, event.dtype.removeprefix("torch.")] if event.numel > 0 else []
    details.append(f"root {event.root}" if event.root >= 0 else "")
    at = place(event.site[0]) if event.site else ""
    through = words.label("through {name}", name=event.through) if event.through else ""
    return Cell(
        number=event.seq,
        op=event.op,
        detail=", ".join(filter(None, (*details, through))),
        place=at,
        done=event.done,
    )


def _marked(event: Event | None, mark: Mark, words: Language) -> Cell:
    return replace(_cell(event, words), mark=mark)


def _trimmed(cells: list[Cell], side: Side, words: Language) -> list[Cell]:
    """Nothing follows the last call; those who never came to the difference are marked there."""
    while cells and not cells[-1].number and not cells[-1].note:
        cells.pop()
    note = words.label("has not come here" if len(side.ranks) == 1 else "have not come here")
    return [*cells, Cell("absent", note=note)] if side.event is None else cells


def _even(columns: list[Column]) -> tuple[Column, ...]:
    longest = max(len(column.cells) for column in columns)
    return tuple(
        replace(column, cells=(*column.cells, *[Cell()] * (longest - len(column.cells)))) for column in columns
    )


def _group_words(incident: Incident, group: str) -> str:
    if group in ("0", ""):
        return incident.words.label("the default group")
    for seen in incident.evidence.ranks:
        for known in (*(seen.progress.groups if seen.progress is not None else ()), *seen.groups):
            if known.name == group and known.ranks:
                told = "group {group} (ranks {ranks})"
                return incident.words.label(told, group=group, ranks=rank_ranges(known.ranks))
    return incident.words.label("group {group}", group=group)
