"""The words for stages: one line each, and the one line that says which rank is where."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from rankscope.evidence.model import Stage
from rankscope.report.plain_text import plain, size
from rankscope.report.words.languages import Language, language

_MEMORY_WORTH_TELLING = 1 << 20


@dataclass(frozen=True, slots=True)
class Speaker:
    """Whose stage it is."""

    rank: int
    local_rank: int
    world_size: int
    pid: int
    started_at: float


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank is: in a stage, or after the last one it passed."""

    stage: Stage | None
    number: int
    """Of that stage, the same on every rank."""
    last_words: str
    since: float
    training: bool
    """Past its first step, and in no stage worth a name."""


def begun_line(stage: Stage, speaker: Speaker) -> str:
    with_note = f" with {stage.note}" if stage.note else ""
    return _line(stage.entered_at, speaker, f"About to {_call(stage.label)}{with_note}...")


def ended_line(stage: Stage, speaker: Speaker) -> str:
    """For a stage that has been left."""
    at = stage.left_at if stage.left_at is not None else stage.entered_at
    if stage.kind == "lock":
        return f"[Rank {speaker.rank}] {plain(stage.words)}"
    if stage.kind == "status":
        return _line(at, speaker, f"{stage.words}: {stage.note}")
    if stage.always:
        return _line(at, speaker, f"{stage.words} {_memory(stage, added=False) or 'memory unknown'}")
    details = "; ".join(filter(None, (_told_note(stage), _time(stage), _memory(stage, added=True))))
    text = f"{stage.label} failed" if stage.failed else f"CHECKPOINT {stage.number}: {stage_words(stage)}"
    return _line(at, speaker, f"{text} ({details})" if details else text)


def still_line(stage: Stage, speaker: Speaker, now: float) -> str:
    return _line(now, speaker, f"Still in {stage.label}, for {now - stage.entered_at:.0f} s ({place(stage)})")


def missed_line(number: int, speaker: Speaker, now: float) -> str:
    return _line(now, speaker, f"{number} stages passed faster than they could be told")


def stage_words(stage: Stage) -> str:
    """What was passed: `Logs directory ready`."""
    if stage.kind == "directory" and stage.note:
        return f"{stage.note[:1].upper()}{stage.note[1:]} directory ready"
    return stage.words


def place(stage: Stage) -> str:
    """`train.py:88`, or an honest nothing."""
    return f"{os.path.basename(stage.site[0].file)}:{stage.site[0].line}" if stage.site else "no line of yours"


def who_is_where(positions: Mapping[int, Position], now: float, lang: str = "en") -> str:
    """`ranks 0-2 are in "first forward" (stage 14); rank 3 has been in "wandb.init" for 41 s (train.py:88)`."""
    words = language(lang)
    groups: dict[str, list[int]] = {}
    for rank, position in sorted(positions.items()):
        groups.setdefault(_where(position, words), []).append(rank)
    most = max(groups.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    parts = []
    for where, ranks in sorted(groups.items(), key=lambda item: item[1] is not most):
        first = positions[ranks[0]]
        who = words.ranks(ranks).replace(", ", ",")
        number = "" if first.training else words.label(" (stage {number})", number=first.number)
        one = len(ranks) == 1
        if ranks is most:
            told = "{who} is {where}" if one else "{who} are {where}"
            parts.append(words.label(told, who=who, where=where) + number)
            continue
        since = min(positions[rank].since for rank in ranks)
        at = f" ({place(first.stage)})" if first.stage is not None and first.stage.site else number
        told = "{who} has been {where} for {seconds} s" if one else "{who} have been {where} for {seconds} s"
        parts.append(words.label(told, who=who, where=where, seconds=f"{max(0.0, now - since):.0f}") + at)
    return plain("; ".join(parts))


def _where(position: Position, words: Language) -> str:
    if position.stage is not None:
        return words.label('in "{stage}"', stage=position.stage.label)
    return (
        words.label("in training") if position.training else words.label('after "{stage}"', stage=position.last_words)
    )


def _line(at: float, speaker: Speaker, text: str) -> str:
    whole = time.strftime("%H:%M:%S", time.localtime(at))
    who = f"[R{speaker.rank}/{speaker.world_size}][LR{speaker.local_rank}][PID:{speaker.pid}]"
    elapsed = max(0.0, at - speaker.started_at)
    return f"[{whole}.{int(at % 1 * 1000):03d}][+{elapsed:.3f}s]{who} {plain(text)}"


def _call(label: str) -> str:
    if label.endswith(".__init__"):
        return f"call {label.removesuffix('.__init__')} constructor"
    return f"start {label}" if " " in label else f"call {label}"


def _told_note(stage: Stage) -> str:
    return "" if stage.kind == "directory" else stage.note


def _time(stage: Stage) -> str:
    seconds = 0.0 if stage.left_at is None else stage.left_at - stage.entered_at
    return f"{seconds:.2f} s" if seconds >= 0.005 else ""


def _memory(stage: Stage, *, added: bool) -> str:
    parts = []
    for name, before, after in (
        ("host", stage.memory_before, stage.memory_after),
        ("GPU", stage.gpu_before, stage.gpu_after),
    ):
        if not after:
            continue
        more = after - before
        worth_telling = added and abs(more) >= _MEMORY_WORTH_TELLING
        grown = f", {'+' if more > 0 else '-'}{size(abs(more), digits=2)}" if worth_telling else ""
        parts.append(f"{name} {size(after, digits=2)}{grown}")
    return "; ".join(parts)
