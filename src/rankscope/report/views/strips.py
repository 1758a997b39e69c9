"""What each rank did, from its start to the end of what was seen: one strip of phases per rank, or class of ranks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from rankscope.diagnosis.timeline import SET_UP
from rankscope.evidence.model import Call, RankEvidence
from rankscope.report.views.incident import Incident, Role, ended
from rankscope.report.views.text import rank_ranges, shown

Phase = Literal["setup", "steps", "data", "forward", "backward", "waiting", "saving", "still", "other"]
WORDS: dict[Phase, str] = {
    "setup": "set-up",
    "steps": "steps (data, forward, other code)",
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "waiting": "in a call with other ranks",
    "saving": "saving",
    "still": "still",
    "other": "other code",
}
EACH = 16
"""Up to so many ranks have a strip each; of more, one per class."""
MOST_OPENED = 64
"""Ranks of a class that can be looked at one by one."""
MOST_CLASSES = 40
_BINS = 400
_NEAR = 3.0
"""The close-up shows this many times the time between the fault and the end."""
_SHORTEST_S = 4.0


@dataclass(frozen=True, slots=True)
class Segment:
    begin: float
    end: float
    phase: Phase
    words: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a strip, in percent of its width."""

    x: float
    width: float
    phase: Phase
    words: str


@dataclass(frozen=True, slots=True)
class Strip:
    ranks: tuple[int, ...]
    role: Role
    pieces: tuple[Piece, ...]
    ended_at: float | None
    """Percent; None where the rank lives."""
    ended: str

    @property
    def label(self) -> str:
        return rank_ranges(self.ranks, 3)


@dataclass(frozen=True, slots=True)
class Window:
    """One picture: the whole run, or its end."""

    title: str
    begin: float
    end: float
    strips: tuple[Strip, ...]
    opened: tuple[tuple[Strip, ...], ...]
    """Of each strip that stands for several ranks: theirs, one by one."""
    ticks: tuple[tuple[float, str], ...]
    """Percent, and the time since the start."""
    fault: float | None
    """Percent: the last progress, or the failure, of whoever caused it."""


@dataclass(frozen=True, slots=True)
class Share:
    """Where the time of some ranks went since their second step."""

    ranks: tuple[int, ...]
    role: Role
    parts: tuple[tuple[Phase, float], ...]
    """Percent of the time."""

    @property
    def label(self) -> str:
        return rank_ranges(self.ranks, 3)


@dataclass(frozen=True, slots=True)
class Timings:
    windows: tuple[Window, ...]
    shares: tuple[Share, ...]
    phases: tuple[Phase, ...]
    """Those that occur, for the legend."""
    fault: str
    """What the mark at the fault signifies; empty where there is none."""


def timings(incident: Incident) -> Timings | None:
    """None where nothing tells when ranks did what, as with logs or dumps alone."""
    evidence = incident.evidence
    known = [seen for seen in evidence.ranks if seen.progress is not None]
    if not known:
        return None
    begin = min(evidence.started_at, *(seen.started_at for seen in known)) if evidence.started_at else 0.0
    end = max([evidence.collected_at, *(seen.exit.at for seen in known if seen.exit is not None)])
    if begin <= 0 or end - begin < 0.05:
        return None
    fault, word = _fault(incident, end)
    classes = _classes(incident, known)
    windows = [_window(incident, incident.words.label("The whole run"), classes, begin, end, begin, fault)]
    near = max(_SHORTEST_S, _NEAR * (end - fault)) if fault is not None else _SHORTEST_S
    if near < 0.5 * (end - begin):
        title = incident.words.label("The end of it")
        windows.append(_window(incident, title, classes, end - near, end, begin, fault))
    shares = _shares(incident, classes)
    used = {piece.phase for window in windows for strip in window.strips for piece in strip.pieces}
    used |= {phase for share in shares for phase, _ in share.parts}
    return Timings(tuple(windows), shares, tuple(phase for phase in WORDS if phase in used), word)


def segments_of(incident: Incident, seen: RankEvidence) -> list[Segment]:
    """What the rank did, up to when it was seen last; later ones are painted over earlier ones."""
    progress = seen.progress
    if progress is None:
        return []
    end = seen.exit.at if seen.exit is not None else incident.evidence.collected_at
    begun = seen.started_at or min((stage.entered_at for stage in progress.stages), default=end)
    first = next((stage.left_at for stage in progress.stages if stage.kind == "first step" and stage.left_at), None)
    # The ring of stages forgets: whoever has made a step, and no longer knows its first one, was set up long ago.
    ready = first if first is not None else (begun if progress.set_up_over else end)
    label = incident.words.label
    found = [Segment(begun, ready, "setup", label("set-up"))] if ready > begun else []
    if end > ready:
        found.append(Segment(ready, end, "steps", label("steps, {count} made", count=progress.steps)))
    for stage in progress.stages:
        left = stage.left_at if stage.left_at is not None else end
        if stage.kind == "save":
            found.append(Segment(stage.entered_at, left, "saving", shown(stage.label, 80)))
        elif left > stage.entered_at and stage.entered_at < ready:
            found.append(Segment(stage.entered_at, left, "setup", shown(stage.label, 80)))
    loader = progress.loader
    if loader is not None and loader.in_next:
        found.append(
            Segment(loader.changed_at, end, "data", label("waits for batch {number}", number=loader.batches + 1))
        )
    if seen.exit is None and seen.still_for_s:
        found.append(Segment(max(begun, end - seen.still_for_s), end, "still", label("no sign of life")))
    found += [_of_call(call, end) for call in progress.calls if call.depth == 0]
    state = incident.state(seen.rank)
    if state is not None and state.wait is not None and state.wait.since < end:
        # Also where no call of Python is open: inside of a backward pass, or of a synchronisation with the GPU.
        call = f"{state.wait.op} {state.wait.seq}" if state.wait.seq else state.wait.op
        found.append(Segment(max(begun, state.wait.since), end, "waiting", label("waits in {call}", call=call)))
    return found


def _of_call(call: Call, end: float) -> Segment:
    left = call.left_at if call.left_at is not None else end
    if call.op == "backward":
        return Segment(call.entered_at, left, "backward", "backward")
    words = call.op if call.op in SET_UP or not call.seq else f"{call.op} {call.seq}"
    return Segment(call.entered_at, left, "waiting", words)


def _fault(incident: Incident, end: float) -> tuple[float | None, str]:
    """When it began, as far as the culprits' pages tell, and what happened then."""
    outcome = incident.verdict.outcome
    if outcome in ("ok", "interrupted", "unknown", "corrupt"):
        return None, ""
    times: list[tuple[float, str]] = []
    for rank in incident.culprits:
        seen = incident.seen.get(rank)
        if seen is None:
            continue
        if outcome == "nan":
            bad = seen.progress.non_finite if seen.progress is not None else ()
            times += [(value.at, "not finite") for value in bad[:1]]
        elif seen.exit is not None:
            raised = [error.at for error in seen.exceptions if error.at is not None]
            times.append((min([*raised, seen.exit.at]), "failed" if seen.exit.code else "left"))
        elif seen.progress is not None:
            times.append((seen.progress.changed_at, "last progress"))
    if not times:
        return None, ""
    at, word = max(times)
    return min(at, end), word


def _classes(incident: Incident, known: Sequence[RankEvidence]) -> list[tuple[int, ...]]:
    if len(known) <= EACH:
        return [(seen.rank,) for seen in known]
    found: dict[Hashable, list[int]] = {}
    for seen in known:
        found.setdefault(_alike(incident, seen), []).append(seen.rank)
    # Where it began first.
    ordered = sorted(found.values(), key=lambda ranks: (ranks[0] not in incident.culprits, -len(ranks), ranks))
    return [tuple(ranks) for ranks in ordered[:MOST_CLASSES]]


def _alike(incident: Incident, seen: RankEvidence) -> Hashable:
    progress = seen.progress
    assert progress is not None
    state = incident.state(seen.rank)
    wait = state.wait if state is not None else None
    inside = tuple(stage.label for stage in progress.stages if stage.left_at is None)
    return (
        incident.role(seen.rank),
        seen.exit.code if seen.exit is not None else None,
        (wait.op, wait.group, wait.seq) if wait is not None else (),
        inside,
        progress.set_up_over,
    )


def _window(
    incident: Incident,
    title: str,
    classes: Sequence[tuple[int, ...]],
    begin: float,
    end: float,
    start: float,
    fault: float | None,
) -> Window:
    strips = tuple(_strip(incident, ranks, begin, end) for ranks in classes)
    opened = tuple(
        tuple(_strip(incident, (rank,), begin, end) for rank in ranks[:MOST_OPENED]) if len(ranks) > 1 else ()
        for ranks in classes
    )
    at = 100 * (fault - begin) / (end - begin) if fault is not None and begin <= fault <= end else None
    return Window(title, begin, end, strips, opened, _ticks(begin - start, end - start), at)


def _strip(incident: Incident, ranks: tuple[int, ...], begin: float, end: float) -> Strip:
    seen = incident.seen[ranks[0]]
    pieces = _pieces(segments_of(incident, seen), begin, end)
    over = seen.exit is not None and begin <= seen.exit.at <= end
    at = 100 * (seen.exit.at - begin) / (end - begin) if over and seen.exit is not None else None
    return Strip(ranks, incident.role(ranks[0]), pieces, at, ended(seen.exit.code, incident.words) if seen.exit else "")


def _pieces(segments: Sequence[Segment], begin: float, end: float) -> tuple[Piece, ...]:
    """What fills most of each small part of the width; calls by the hundred would be no wider than a hair."""
    scale = _BINS / (end - begin)
    spans = [
        (max(0.0, (each.begin - begin) * scale), min(float(_BINS), (each.end - begin) * scale), each)
        for each in segments
        if each.end > begin and each.begin < end
    ]
    edges = sorted({edge for first, last, _ in spans for edge in (first, last)})
    top: list[Segment | None] = [None] * max(0, len(edges) - 1)
    for first, last, each in spans:
        for at in range(bisect_left(edges, first), bisect_left(edges, last)):
            top[at] = each
    weight: dict[int, dict[Phase, tuple[float, str]]] = {}
    for at, segment in enumerate(top):
        if segment is None:
            continue
        first, last = edges[at], edges[at + 1]
        for bin_ in range(int(first), min(_BINS - 1, int(last)) + 1):
            overlap = min(last, bin_ + 1) - max(first, bin_)
            if overlap > 0:
                phases = weight.setdefault(bin_, {})
                phases[segment.phase] = (phases.get(segment.phase, (0.0, ""))[0] + overlap, segment.words)
    found: list[Piece] = []
    for bin_ in sorted(weight):
        phase, (_, words) = max(weight[bin_].items(), key=lambda pair: pair[1][0])
        x, width = 100 * bin_ / _BINS, 100 / _BINS
        last_piece = found[-1] if found else None
        touches = last_piece is not None and abs(last_piece.x + last_piece.width - x) < 1e-6
        if last_piece is not None and touches and last_piece.phase == phase and last_piece.words == words:
            found[-1] = Piece(last_piece.x, last_piece.width + width, phase, words)
        elif last_piece is not None and touches and last_piece.phase == phase and phase in ("backward", "waiting"):
            # Calls in a row: one piece, named after the last of them.
            found[-1] = Piece(last_piece.x, last_piece.width + width, phase, words)
        else:
            found.append(Piece(x, width, phase, words))
    return tuple(found)


def _ticks(first: float, last: float) -> tuple[tuple[float, str], ...]:
    length = last - first
    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
    step = next((each for each in steps if length / each <= 5), None)
    while step is None or length / step > 5:
        step = (step or 3600) * 2
    at = step * int(first / step + 1 - 1e-9)
    found = []
    while at <= last + 1e-9:
        x = 100 * (at - first) / length
        if x <= 96:
            found.append((x, clock(at, step)))
        at += step
    return tuple(found)


def clock(seconds: float, step: float = 1.0) -> str:
    """Since the start: `4.2 s`, `3:05`, `2:03:05`."""
    if seconds < 60 and step < 60:
        return f"{seconds:.{0 if step >= 1 else 1 if step >= 0.1 else 2}f} s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _shares(incident: Incident, classes: Sequence[tuple[int, ...]]) -> tuple[Share, ...]:
    found = []
    for ranks in classes:
        every = [p.phases for rank in ranks if (p := incident.seen[rank].progress) is not None and p.phases is not None]
        total = sum(each.until - each.since for each in every)
        if total <= 0:
            continue
        sums: dict[Phase, float] = {
            "data": sum(each.data_s for each in every),
            "forward": sum(each.forward_s for each in every),
            "backward": sum(each.backward_s for each in every),
            "waiting": sum(each.waiting_s for each in every),
            "saving": sum(each.saving_s for each in every),
        }
        sums["other"] = max(0.0, total - sum(sums.values()))
        whole = max(total, sum(sums.values()))
        parts: list[tuple[Phase, float]] = [(phase, 100 * part / whole) for phase, part in sums.items() if part > 0]
        found.append(Share(ranks, incident.role(ranks[0]), tuple(parts)))
    return tuple(found)
