"""Who waits for whom, as a picture: one node per class of ranks that wait alike, in rows from waiting to awaited."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from rankscope.diagnosis import views
from rankscope.diagnosis.wait_graph import State
from rankscope.report.views.incident import Incident, Role, ended
from rankscope.report.views.text import place, rank_ranges, shown
from rankscope.report.words.languages import Language
from rankscope.terminal_text import wrapped

MOST_NODES = 14
_ALONE = 12
"""In a circle of so few ranks each is a node of its own."""
NODE_WIDTH = 236
_GAP_X, _GAP_Y = 28, 64
_LINE, _TITLE, _FOOT = 18, 27, 14
_WRAP = 31
_ARC = 30
"""Room above the first row for arrows over a node."""
_APART = 12
"""Between the two arrows of ranks that wait for each other."""
_DEVICE_BACKENDS = ("nccl", "xccl", "ucc")


@dataclass(frozen=True, slots=True)
class Node:
    title: str
    ranks: tuple[int, ...]
    role: Role
    lines: tuple[str, ...]
    row: int
    x: int
    y: int
    height: int

    @property
    def title_y(self) -> int:
        return self.y + _TITLE

    @property
    def baselines(self) -> tuple[tuple[int, str], ...]:
        return tuple((self.title_y + 2 + _LINE * at, line) for at, line in enumerate(self.lines, start=1))


@dataclass(frozen=True, slots=True)
class Arrow:
    path: str
    """Of SVG."""
    device: bool
    """The ranks' GPUs wait; otherwise their programs do."""


@dataclass(frozen=True, slots=True)
class WaitPicture:
    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    width: int
    height: int
    sentences: tuple[str, ...]
    """The same in words, for those who do not see it."""
    left_out: int = 0

    @property
    def device(self) -> bool:
        return any(arrow.device for arrow in self.arrows)

    @property
    def program(self) -> bool:
        return any(not arrow.device for arrow in self.arrows)


def wait_picture(incident: Incident) -> WaitPicture | None:
    """None where nobody waits for anybody."""
    edges = incident.case.graph.edges
    if not any(edges.values()):
        return None
    classes = _classes(incident)
    number = {rank: at for at, ranks in enumerate(classes) for rank in ranks}
    targets = [sorted({number[rank] for rank in edges.get(ranks[0], ()) if rank in number}) for ranks in classes]
    awaited = {target for row in targets for target in row}
    # Ranks that neither wait nor are waited for are no part of the picture.
    kept = [at for at, row in enumerate(targets) if row or at in awaited]
    return _laid_out(incident, classes, targets, kept)


def _classes(incident: Incident) -> list[tuple[int, ...]]:
    """Ranks that do the same and wait for the same classes."""
    graph = incident.case.graph
    keys: dict[int, Hashable] = {rank: _key(incident, state) for rank, state in graph.states.items()}
    for _ in range(4):
        numbers = {key: at for at, key in enumerate(dict.fromkeys(keys.values()))}
        reached: dict[int, frozenset[int]] = {}
        for targets in graph.edges.values():
            if id(targets) not in reached:
                reached[id(targets)] = frozenset(numbers[keys[rank]] for rank in targets if rank in keys)
        finer: dict[int, Hashable] = {
            rank: (numbers[key], reached[id(graph.edges[rank])] if rank in graph.edges else None)
            for rank, key in keys.items()
        }
        more = len(set(finer.values()))
        if more == len(numbers) or more > MOST_NODES:
            break
        keys = finer
    found: dict[Hashable, list[int]] = {}
    for rank, key in keys.items():
        found.setdefault(key, []).append(rank)
    classes = [tuple(ranks) for ranks in found.values()]
    circles = [ranks for ranks in classes if any(set(ranks) & graph.edges.get(rank, frozenset()) for rank in ranks)]
    if circles and sum(map(len, circles)) <= _ALONE:
        classes = [ranks for ranks in classes if ranks not in circles] + [(rank,) for each in circles for rank in each]
    return sorted(classes, key=lambda ranks: ranks[0])


def _key(incident: Incident, state: State) -> Hashable:
    wait = state.wait
    role = incident.role(state.rank)
    code = state.seen.exit.code if state.seen is not None and state.seen.exit is not None else None
    if wait is None:
        at = incident.where(state.rank)
        return role, state.kind, code, at
    site = (wait.site[0].file, wait.site[0].line) if wait.site else ()
    return role, state.kind, code, wait.op, wait.group, wait.seq, site


def _laid_out(
    incident: Incident, classes: list[tuple[int, ...]], targets: list[list[int]], kept: list[int]
) -> WaitPicture:
    guilty = [at for at in kept if not incident.culprits.isdisjoint(classes[at])]
    rows = _rows(targets, kept, guilty)
    across = max(1, min(3, max(len(row) for row in rows)))
    rows = [row[at : at + across] for row in rows for at in range(0, len(row), across)]
    left_out = sum(len(classes[at]) for row in rows[MOST_NODES:] for at in row)
    rows = rows[:MOST_NODES]
    width = across * NODE_WIDTH + (across - 1) * _GAP_X
    words = incident.words
    nodes: dict[int, Node] = {}
    y = 2 if across < 3 else 2 + _ARC
    for number, row in enumerate(rows):
        x = (width - len(row) * NODE_WIDTH - (len(row) - 1) * _GAP_X) // 2
        tallest = 0
        for at in row:
            lines = _lines(incident, classes[at])
            height = _TITLE + 2 + _LINE * len(lines) + _FOOT
            nodes[at] = Node(
                _title(classes[at], words), classes[at], _role(incident, classes[at]), lines, number, x + 2, y, height
            )
            x += NODE_WIDTH + _GAP_X
            tallest = max(tallest, height)
        y += tallest + _GAP_Y
    arrows: list[Arrow] = []
    sentences = []
    margin = width + 6
    for at, node in nodes.items():
        device = _device_waits(incident.state(classes[at][0]))
        for target in targets[at]:
            if target in nodes:
                path, right = _path(node, nodes[target], width, len(arrows))
                margin = max(margin, right)
                arrows.append(Arrow(path, device))
        others = [nodes[target].title for target in targets[at] if target in nodes and target != at]
        if others:
            told = "{who} waits for {whom}" if len(node.ranks) == 1 else "{who} wait for {whom}"
            sentences.append(words.label(told, who=node.title, whom=words.label(" and ").join(others)))
    return WaitPicture(tuple(nodes.values()), tuple(arrows), margin, y - _GAP_Y + 4, tuple(sentences), left_out)


def _rows(targets: list[list[int]], kept: list[int], guilty: list[int]) -> list[list[int]]:
    """Those that everybody waits for last, whoever waits for them above, and so on."""
    depth: dict[int, int] = {at: 0 for at in kept if not targets[at]}
    if not depth:
        # All wait in a circle: it is entered where it began, else at the class that most wait for.
        waits_for = [target for row in targets for target in row]
        depth = {max(guilty or kept, key=lambda at: (waits_for.count(at), -at)): 0}
    queue = list(depth)
    while queue:
        here = queue.pop(0)
        for at in kept:
            if at not in depth and here in targets[at]:
                depth[at] = depth[here] + 1
                queue.append(at)
    for at in kept:
        depth.setdefault(at, 0)
    deepest = max(depth.values())
    return [row for level in range(deepest, -1, -1) if (row := [at for at in kept if depth[at] == level])]


def _path(one: Node, other: Node, width: int, number: int) -> tuple[str, int]:
    """An arrow of SVG, and how far to the right it reaches. To the next row straight down or up, within a row across,
    anywhere else around the right side."""
    middle, there = one.x + NODE_WIDTH // 2, other.x + NODE_WIDTH // 2
    if other.row == one.row + 1:
        begin, end = one.y + one.height, other.y - 3
        return _curve(middle - _APART, begin, there - _APART, end), 0
    if other.row == one.row - 1:
        begin, end = one.y, other.y + other.height + 3
        return _curve(middle + _APART, begin, there + _APART, end), 0
    if other.row == one.row and other is not one:
        return _across(one, other), 0
    right = width + 26 + 10 * (number % 4)
    from_y, to_y = one.y + one.height // 2 + 8, other.y + other.height // 2 - 8
    edge, other_edge = one.x + NODE_WIDTH, other.x + NODE_WIDTH + 3
    return f"M{edge} {from_y} C{right} {from_y} {right} {to_y} {other_edge} {to_y}", right


def _curve(x: int, y: int, to_x: int, to_y: int) -> str:
    half = (y + to_y) // 2
    return f"M{x} {y} C{x} {half} {to_x} {half} {to_x} {to_y}"


def _across(one: Node, other: Node) -> str:
    rightwards = other.x > one.x
    if abs(other.x - one.x) <= NODE_WIDTH + _GAP_X:
        y = one.y + 30 + (0 if rightwards else _APART)
        begin, end = (one.x + NODE_WIDTH, other.x - 3) if rightwards else (one.x, other.x + NODE_WIDTH + 3)
        return f"M{begin} {y} L{end} {y}"
    middle, there, top = one.x + NODE_WIDTH // 2, other.x + NODE_WIDTH // 2, one.y - _ARC
    return f"M{middle} {one.y} C{middle} {top} {there} {top} {there} {other.y - 3}"


def _title(ranks: tuple[int, ...], words: Language) -> str:
    return words.label("rank {ranks}" if len(ranks) == 1 else "ranks {ranks}", ranks=rank_ranges(ranks, 4))


def _role(incident: Incident, ranks: tuple[int, ...]) -> Role:
    return incident.role(ranks[0])


def _device_waits(state: State | None) -> bool:
    event = state.wait.event if state is not None and state.wait is not None else None
    return event is not None and event.backend.lower().startswith(_DEVICE_BACKENDS)


def _lines(incident: Incident, ranks: tuple[int, ...]) -> tuple[str, ...]:
    state = incident.state(ranks[0])
    assert state is not None
    texts: list[str] = []
    words = incident.words
    label = words.label
    wait, seen = state.wait, state.seen
    at = place(incident.where(ranks[0]))
    if wait is not None:
        number = f" {wait.seq}" if wait.seq else ""
        peer = label(" (peer {rank})", rank=wait.peer) if wait.peer >= 0 else ""
        there = "GPU in {call}" if _device_waits(state) else "in {call}"
        texts.append(label(there, call=f"{wait.op}{number}{peer}"))
        texts.append(label("at {place}", place=at) if at else "")
        texts += _program_elsewhere(state, words)
    elif seen is not None and seen.exit is not None:
        texts += [ended(seen.exit.code, words), label("at {place}", place=at) if at else ""]
    elif seen is None:
        absent = ranks[0] in incident.case.graph.absent
        texts.append(label("never started") if absent else label("nothing is known of it"))
    else:
        texts += [label("at {place}", place=at) if at else ""]
        texts.append(label("moves") if views.moving(seen) else label("stands still"))
    if len(ranks) > 1:
        texts.append(label("{count} ranks", count=f"{len(ranks):,}"))
    return tuple(line for text in texts if text for line in wrapped(shown(text), _WRAP)[:3])


def _program_elsewhere(state: State, words: Language) -> list[str]:
    """The program runs ahead of its GPU: it may stand at another line than the one that enqueued the call."""
    if not _device_waits(state) or state.seen is None:
        return []
    here = views.current_where(state.seen)
    assert state.wait is not None
    enqueued = state.wait.site[0] if state.wait.site else None
    if here is None or (enqueued is not None and (here.file, here.line) == (enqueued.file, enqueued.line)):
        return []
    return [words.label("program at {place}", place=place(here))]
