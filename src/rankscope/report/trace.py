"""The incident in the formats of other viewers: time as a Chrome trace (for Perfetto), stacks for speedscope."""

from __future__ import annotations

from typing import Any

import msgspec

from rankscope import __version__
from rankscope.evidence.model import Collective, RankEvidence
from rankscope.report.plain_text import plain
from rankscope.report.views.incident import Incident, ended
from rankscope.report.views.stacks import stack_of
from rankscope.report.views.strips import WORDS, segments_of
from rankscope.report.views.text import place, short_file

_PROGRAM, _RECORDED, _STAGES = 1, 2, 3
_LANES = {_PROGRAM: "program", _RECORDED: "collectives (flight recorder)", _STAGES: "stages"}
_COLOR = {"waiting": "bad", "still": "terrible", "backward": "rail_animation", "saving": "rail_load"}


def chrome_trace(incident: Incident) -> bytes:
    """One process per rank; microseconds since the start of the job."""
    events: list[dict[str, Any]] = []
    start = _start(incident)
    for seen in incident.evidence.ranks:
        events += _of_rank(incident, seen, start)
    return msgspec.json.encode(
        {
            "displayTimeUnit": "ms",
            "otherData": {"rankscope": __version__, "headline": plain(incident.verdict.headline)},
            "traceEvents": events,
        }
    )


def _start(incident: Incident) -> float:
    """Evidence of files may know no start."""
    times = [seen.started_at for seen in incident.evidence.ranks if seen.started_at > 0]
    times += [entry.created_at for seen in incident.evidence.ranks for entry in seen.collectives[:1]]
    return min([*times, *([incident.evidence.started_at] if incident.evidence.started_at > 0 else [])], default=0.0)


def _of_rank(incident: Incident, seen: RankEvidence, start: float) -> list[dict[str, Any]]:
    role = incident.role(seen.rank)
    name = f"rank {seen.rank}" + ("" if role == "other" else f" ({role})")
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": seen.rank, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": seen.rank, "args": {"sort_index": seen.rank}},
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": seen.rank, "tid": lane, "args": {"name": words}}
        for lane, words in _LANES.items()
    ]
    end = seen.exit.at if seen.exit is not None else incident.evidence.collected_at
    for each in segments_of(incident, seen):
        lane = _STAGES if each.phase in ("setup", "steps", "still") else _PROGRAM
        made = _piece(seen.rank, lane, each.words, each.phase, each.begin - start, each.end - start)
        made["args"] = {"phase": WORDS[each.phase]}
        if each.phase in _COLOR:
            made["cname"] = _COLOR[each.phase]
        events.append(made)
    events += [_collective(seen.rank, entry, start, end) for entry in seen.collectives]
    if seen.exit is not None:
        events.append(_mark(seen.rank, ended(seen.exit.code, incident.words), seen.exit.at - start))
    if role == "culprit" and seen.progress is not None:
        events.append(_mark(seen.rank, "last progress", seen.progress.changed_at - start))
    return events


def _piece(rank: int, lane: int, name: str, category: str, begin: float, end: float) -> dict[str, Any]:
    micro = max(0, round(begin * 1e6))
    long = max(1, round(end * 1e6) - micro)
    return {"ph": "X", "name": name, "cat": category, "pid": rank, "tid": lane, "ts": micro, "dur": long}


def _mark(rank: int, name: str, at: float) -> dict[str, Any]:
    return {"ph": "i", "s": "p", "name": name, "pid": rank, "tid": _PROGRAM, "ts": max(0, round(at * 1e6))}


def _collective(rank: int, entry: Collective, start: float, end: float) -> dict[str, Any]:
    done = entry.completed_at if entry.completed_at is not None else None
    # Without a time of completion, one that is over is as short as can be drawn.
    last = done if done is not None else (entry.created_at if entry.retired else end)
    name = entry.op if entry.p2p else f"{entry.op} {entry.seq}"
    made = _piece(rank, _RECORDED, name, entry.state, entry.created_at - start, last - start)
    site = next((place(frame) for frame in entry.frames if frame.user), "")
    made["args"] = {
        "group": entry.group,
        "state": entry.state,
        "sizes": [list(size) for size in entry.input_sizes],
        **({"at": site} if site else {}),
    }
    return made


def speedscope(incident: Incident) -> bytes:
    """One profile in which a stack weighs as many ranks as stand in it."""
    stacks: dict[tuple[int, ...], list[int]] = {}
    numbers: dict[tuple[str, str, int], int] = {}
    for seen in incident.evidence.ranks:
        path = tuple(
            numbers.setdefault((frame.function, short_file(frame.file), frame.line), len(numbers))
            for frame in stack_of(seen)
        )
        if path:
            stacks.setdefault(path, []).append(seen.rank)
    total = sum(map(len, stacks.values()))
    return msgspec.json.encode(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": f"rankscope {__version__}",
            "name": plain(incident.verdict.headline),
            "activeProfileIndex": 0,
            "shared": {
                "frames": [{"name": name, "file": file, "line": line} for name, file, line in numbers],
            },
            "profiles": [
                {
                    "type": "sampled",
                    "name": f"{total} ranks",
                    "unit": "none",
                    "startValue": 0,
                    "endValue": total,
                    "samples": [list(path) for path in stacks],
                    "weights": [len(ranks) for ranks in stacks.values()],
                }
            ],
        }
    )
