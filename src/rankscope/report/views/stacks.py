"""All ranks' stacks as one tree: equal frames are one, it branches where ranks went different ways."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.diagnosis import views
from rankscope.evidence.model import Frame, RankEvidence
from rankscope.report.views.incident import Incident, movement
from rankscope.report.views.text import rank_ranges, short_file
from rankscope.report.words.languages import Language

_DEEPEST = 400
_OURS = re.compile(r"^<rankscope|/rankscope/probe/")
"""The probe's wrappers, which only pass a call on."""
MOST_BRANCHES = 120
"""Ends of the tree that are shown; a job of thousands of ranks stands at few different places."""
_Path = tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Frames one after another, from the outermost on: one of the user's, or any number of a library's."""

    frames: tuple[Frame, ...]
    user: bool

    @property
    def packages(self) -> str:
        """Whose frames they are: `torch, threading`."""
        names = dict.fromkeys(_package(frame) for frame in self.frames)
        return ", ".join(list(names)[:4]) + (", …" if len(names) > 4 else "")


@dataclass(frozen=True, slots=True)
class End:
    """Ranks whose stacks end here, and what they do."""

    ranks: tuple[int, ...]
    state: str
    """`moved`, `still`, `ended` or empty."""
    words: str


@dataclass(frozen=True, slots=True)
class Branch:
    ranks: tuple[int, ...]
    culprits: tuple[int, ...]
    """Those of the ranks that caused it."""
    runs: tuple[Run, ...]
    ends: tuple[End, ...]
    branches: tuple[Branch, ...]

    @property
    def label(self) -> str:
        return rank_ranges(self.ranks)


@dataclass(frozen=True, slots=True)
class StackTree:
    branches: tuple[Branch, ...]
    unknown: tuple[End, ...]
    """Ranks without a stack, and why."""
    left_out: int = 0
    """Ranks at places that are too many to be shown."""


def stack_tree(incident: Incident) -> StackTree:
    """By the newest stack of the main thread; of a rank that ended with an exception, by its traceback."""
    paths: dict[_Path, list[int]] = {}
    unknown: dict[str, list[int]] = {}
    for seen in incident.evidence.ranks:
        path = stack_of(seen)
        if path:
            paths.setdefault(path, []).append(seen.rank)
        else:
            unknown.setdefault(_why_none(seen, incident.words), []).append(seen.rank)
    # Where it began, then the largest: what is left out matters least.
    ordered = sorted(paths.items(), key=lambda pair: (incident.culprits.isdisjoint(pair[1]), -len(pair[1]), pair[1]))
    shown = ordered[:MOST_BRANCHES]
    left_out = sum(len(ranks) for _, ranks in ordered[MOST_BRANCHES:])
    branches = _branches(incident, shown, 0)
    return StackTree(branches, tuple(End(tuple(ranks), "", why) for why, ranks in unknown.items()), left_out)


def stack_of(seen: RankEvidence) -> tuple[Frame, ...]:
    """The outermost frame first."""
    thread = views.newest_main_thread(seen) if seen.exit is None else None
    frames = thread.frames if thread is not None else ()
    if not frames and seen.exceptions:
        frames = seen.exceptions[-1].frames
    if not frames:
        frames = seen.crash_stack
    if not frames and seen.progress is not None:
        inside = [call for call in seen.progress.calls if call.left_at is None and call.depth == 0 and call.site]
        frames = inside[-1].site if inside else ()
    frames = tuple(frame for frame in frames if not _OURS.search(frame.file))
    return tuple(reversed(frames[:_DEEPEST]))


def _branches(incident: Incident, stacks: Sequence[tuple[_Path, list[int]]], depth: int) -> tuple[Branch, ...]:
    """Stacks that agree up to `depth`, by their next frame."""
    found: dict[Frame, list[tuple[_Path, list[int]]]] = {}
    for path, ranks in stacks:
        found.setdefault(path[depth], []).append((path, ranks))
    return tuple(_branch(incident, group, depth) for group in found.values())


def _branch(incident: Incident, stacks: list[tuple[_Path, list[int]]], depth: int) -> Branch:
    common = _common(stacks, depth)
    first = stacks[0][0]
    ranks = tuple(sorted(rank for _, members in stacks for rank in members))
    ends: list[End] = []
    for path, members in stacks:
        if len(path) == common:
            ends += _ends(incident, members)
    further = [(path, members) for path, members in stacks if len(path) > common]
    return Branch(
        ranks=ranks,
        culprits=tuple(rank for rank in ranks if rank in incident.culprits),
        runs=_runs(first[depth:common]),
        ends=tuple(ends),
        branches=_branches(incident, further, common) if further else (),
    )


def _common(stacks: list[tuple[_Path, list[int]]], depth: int) -> int:
    """How far all of them agree."""
    first = stacks[0][0]
    shortest = min(len(path) for path, _ in stacks)
    at = depth
    while at < shortest and all(path[at] == first[at] for path, _ in stacks):
        at += 1
    return at


def _runs(frames: _Path) -> tuple[Run, ...]:
    runs: list[list[Frame]] = []
    for frame in frames:
        if runs and not frame.user and not runs[-1][0].user:
            runs[-1].append(frame)
        else:
            runs.append([frame])
    return tuple(Run(tuple(run), run[0].user) for run in runs)


def _ends(incident: Incident, ranks: list[int]) -> list[End]:
    found: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        found.setdefault(_doing(incident, rank), []).append(rank)
    return [End(tuple(members), *doing) for doing, members in found.items()]


def _doing(incident: Incident, rank: int) -> tuple[str, str]:
    seen = incident.seen[rank]
    waiting = incident.state(rank)
    words = incident.words
    state, told = movement(seen, words, waits=waiting is not None and waiting.wait is not None)
    if seen.exit is not None and seen.exceptions:
        return state, f"{told}, {seen.exceptions[-1].type}"
    if waiting is not None and waiting.wait is not None:
        # Ranks of one wait differ in how long they have been in it, and in nothing else.
        call = f"{waiting.wait.op}{f' {waiting.wait.seq}' if waiting.wait.seq else ''}"
        return state, words.label("in {call}", call=call)
    return state, told


def _why_none(seen: RankEvidence, words: Language) -> str:
    state, told = movement(seen, words, waits=False)
    if state == "ended":
        return told
    none = words.label("no stack was read")
    return "; ".join(f"{what}: {why}" for what, why in seen.missing.items() if what == "stacks") or none


def _package(frame: Frame) -> str:
    if frame.native:
        return "native code"
    name = short_file(frame.file)
    return name.partition("/")[0].removesuffix(".py")
