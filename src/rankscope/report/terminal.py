"""The verdict on the terminal: the last thing a person sees of a bad run, at most 20 lines."""

from __future__ import annotations

import os
import re
import textwrap
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

from rankscope.diagnosis.verdict import Culprit, KnownMessage, Outcome, SignOfLife, Verdict
from rankscope.report.phrases import duration, plain, short_path
from rankscope.report.words.phrases import ranks_text, span

MOST_LINES = 20
_LEAST_WIDTH = 40
_LONGEST_WORD = 200
_LONGEST_TEXT = 5
"""Lines of one text: what is longer is a log, and belongs into the evidence."""
_MOST_GROUPS = 4

_RESET, _BOLD, _DIM = "\x1b[0m", "\x1b[1m", "\x1b[2m"
_OUTCOME_COLOR: dict[Outcome, str] = {
    "ok": "\x1b[1;32m",
    "hang": "\x1b[1;31m",
    "crash": "\x1b[1;31m",
    "nan": "\x1b[1;31m",
    "corrupt": "\x1b[1;31m",
    "slow": "\x1b[1;33m",
    "unknown": "\x1b[1;33m",
    "interrupted": _BOLD,
}

_DROPPING = (
    ("see", 0),
    ("messages", 2),
    ("stages", 3),
    ("last signs", 1),
    ("to confirm", 1),
    ("note", 1),
    ("messages", 0),
    ("stages", 2),
    ("may be", 3),
    ("to confirm", 0),
    ("also possible", 0),
    ("note", 0),
    ("last signs", 0),
    ("stages", 1),
    ("because", 3),
    ("fix", 2),
    ("because", 1),
    ("fix", 1),
)
"""What goes when there are too many lines: texts of a part, the last first, down to that many."""


_WHEN_WELL = frozenset({"because", "messages", "last signs", "note"})
_LABELS = (
    *(
        "culprit",
        "victims",
        "because",
        "fix",
        "may be",
        "also possible",
        "to confirm",
        "messages",
        "stages",
        "last signs",
        "note",
        "see",
        "report",
    ),
    "evidence",
)


@dataclass(frozen=True, slots=True)
class _Part:
    label: str
    texts: tuple[str, ...]


def use_color(stream: TextIO) -> bool:
    """NO_COLOR and FORCE_COLOR decide where they are set; otherwise a terminal has colour unless dumb."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return os.environ["FORCE_COLOR"] != "0"
    return os.environ.get("TERM") != "dumb" and stream.isatty()


def render(verdict: Verdict, *, color: bool, width: int = 100, folder: str, done: str = "") -> str:
    """The verdict in words, without a newline at the end; `folder` is where the evidence lies, `done` what a good run
    did."""
    width = max(width, _LEAST_WIDTH)
    if verdict.outcome == "ok":
        head, parts = _ok_head(verdict, done), [part for part in _parts(verdict, folder) if part.label in _WHEN_WELL]
    else:
        head, parts = _bad_head(verdict), _parts(verdict, folder)
    lines = _fit(head, [part for part in parts if part.texts], width)
    return "\n".join(_colored(lines, verdict) if color else lines)


def _ok_head(verdict: Verdict, done: str) -> tuple[str, str]:
    facts = [f"rankscope: OK, {verdict.world_size} rank{'' if verdict.world_size == 1 else 's'}"]
    if verdict.started_at is not None and verdict.ended_at is not None:
        facts.append(duration(verdict.ended_at - verdict.started_at))
    facts += [done] if done else []
    # Of a job that goes on only what was seen of it can be said.
    return (", ".join(facts), "") if not verdict.because else (f"{', '.join(facts)}: ", plain(verdict.headline))


def _bad_head(verdict: Verdict) -> tuple[str, str]:
    """What stands before the headline, and the headline."""
    # How certain the cause is says nothing where there is none: somebody stopped the job.
    certainty = f", {verdict.certainty}" if verdict.cause is not None else ""
    after = f" after {duration(verdict.detected_after_s)}" if verdict.detected_after_s is not None else ""
    return f"rankscope: {verdict.outcome.upper()}{certainty}{after}: ", plain(verdict.headline)


def _parts(verdict: Verdict, folder: str) -> list[_Part]:
    where = plain(short_path(folder))
    # Where nobody can tell, what it may be is the answer; the last lines are among what was seen.
    unknown = verdict.outcome == "unknown"
    others = [f"{item.cause} ({item.certainty}): {item.because}" for item in verdict.alternatives[:2]]
    causes = [f"{item.cause}: {item.because}. {item.next}".rstrip(" .") for item in verdict.alternatives[:5]]
    return [
        _Part("culprit", tuple(_culprit_texts(verdict.culprits))),
        _Part("victims", (ranks_text(verdict.victims),) if verdict.victims else ()),
        _Part("because", _texts(verdict.because[:6])),
        _Part("fix", _texts(verdict.fix[:3])),
        _Part("may be", _texts(causes if unknown else ())),
        _Part("also possible", _texts(() if unknown else others)),
        _Part("to confirm", _texts(verdict.next[:2])),
        _Part("messages", _texts(_message_texts(verdict.messages))),
        _Part("stages", _texts(_stage_texts(verdict.stages))),
        _Part("last signs", _texts(() if unknown else _sign_texts(verdict.signs_of_life))),
        _Part("note", _texts(verdict.notes)),
        _Part("see", _texts(verdict.references[:2])),
        _Part("report", (f"{where}/{verdict.report}",) if where and verdict.report else ()),
        _Part("evidence", (f"{where}  (again: rankscope diagnose {where})",) if where else ()),
    ]


def _message_texts(messages: tuple[KnownMessage, ...]) -> list[str]:
    """What the known messages signify; those of culprits first, and each meaning once."""
    by_meaning: dict[tuple[str, str], list[int]] = {}
    order = {"culprit": 0, "victim": 1, "neutral": 2}
    for message in sorted(messages, key=lambda message: order[message.role]):
        ranks = by_meaning.setdefault((message.role, message.meaning), [])
        if message.rank is not None:
            ranks.append(message.rank)
    texts = []
    for (role, meaning), ranks in by_meaning.items():
        who = f"{ranks_text(ranks)}: " if ranks else ""
        texts.append(f"{who}{meaning}" + ("" if role == "neutral" else f" ({role})"))
    return texts[:_MOST_GROUPS]


def _stage_texts(stages: Mapping[int, str]) -> list[str]:
    """`ranks 0-2 after stage 9, First optimizer step done`: those that stand alike are one text, most of them first."""
    alike: dict[str, list[int]] = {}
    for rank, stage in sorted(stages.items()):
        alike.setdefault(stage, []).append(rank)
    groups = sorted(alike.items(), key=lambda group: -len(group[1]))
    texts = [f"{ranks_text(ranks)} {stage}" for stage, ranks in groups[:_MOST_GROUPS]]
    rest = sum(len(ranks) for _, ranks in groups[_MOST_GROUPS:])
    return [*texts, f"and {rest} more ranks"] if rest else texts


def _sign_texts(signs: tuple[SignOfLife, ...]) -> list[str]:
    """The ranks that have been silent the longest, with their last lines."""
    texts = []
    for sign in signs[:3]:
        silent = f", silent for {duration(sign.silent_s)}" if sign.silent_s is not None and sign.silent_s >= 1 else ""
        if not silent and sign.ago_s is not None:
            silent = f", {span(sign.ago_s)} ago"
        at = f" {time.strftime('%H:%M:%S', time.localtime(sign.at))}" if sign.at is not None else ""
        texts.append(f"rank {sign.rank}{at}{silent}: {sign.line[:120]}")
    if len(signs) > 3:
        texts.append(f"and {len(signs) - 3} more ranks")
    return texts


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(filter(None, map(plain, texts)))


def _culprit_texts(culprits: tuple[Culprit, ...]) -> list[str]:
    """Those that do the same at the same place are one text; a single one says what it does in a second."""
    groups: dict[object, list[Culprit]] = {}
    for culprit in culprits:
        groups.setdefault((culprit.process, culprit.where, culprit.doing), []).append(culprit)
    texts = []
    shown = list(groups.values())[:_MOST_GROUPS]
    for group in shown:
        place = "  ".join(filter(None, (_who(group), _place(group[0]))))
        stages = {culprit.stage for culprit in group}
        stage = next(iter(stages)) if len(stages) == 1 else None
        doing = plain("; ".join(filter(None, (group[0].doing, stage))))
        if len(groups) == 1:
            texts += [place, doing] if doing else [place]
        else:
            texts.append(f"{place}: {doing}" if doing else place)
    if len(groups) > len(shown):
        rest = len(culprits) - sum(map(len, shown))
        texts.append(f"and {rest} more at {len(groups) - len(shown)} other places")
    return texts


def _who(group: list[Culprit]) -> str:
    ranks = sorted({culprit.rank for culprit in group if culprit.rank is not None})
    hosts = sorted({plain(culprit.host) for culprit in group if culprit.host})
    pids = sorted({culprit.pid for culprit in group if culprit.pid is not None})
    facts = []
    if hosts:
        facts.append(hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts")
    if len(pids) == 1:
        facts.append(f"pid {pids[0]}")
    details = f" ({', '.join(facts)})" if facts else ""
    return _kind(group[0].process, ranks) + details


def _kind(process: str, ranks: list[int]) -> str:
    names = ranks_text(ranks) if ranks else None
    if process == "launcher":
        return "the launcher"
    if process == "dataloader-worker":
        return f"data-loading worker of {names}" if names else "a data-loading worker"
    if process == "child":
        return f"child process of {names}" if names else "a child process"
    return names or "a rank that never started"


def _place(culprit: Culprit) -> str:
    if culprit.where is None:
        return ""
    return f"{_file_line(culprit)}  {plain(culprit.where.function)}".rstrip()


def _file_line(culprit: Culprit) -> str:
    return f"{plain(short_path(culprit.where.file))}:{culprit.where.line}" if culprit.where else ""


def _fit(head: tuple[str, str], parts: list[_Part], width: int) -> list[str]:
    """All of it in 20 lines: what matters least goes first; texts are cut only when that is not enough."""
    lines = _layout(head, parts, width, _LONGEST_TEXT)
    for label, least in _DROPPING:
        while len(lines) > MOST_LINES and any(part.label == label and len(part.texts) > least for part in parts):
            parts = _without_last(parts, label)
            lines = _layout(head, parts, width, _LONGEST_TEXT)
    for most_lines in (4, 3, 2, 1):
        if len(lines) > MOST_LINES:
            lines = _layout(head, parts, width, most_lines)
    return lines


def _without_last(parts: list[_Part], label: str) -> list[_Part]:
    shorter = [_Part(part.label, part.texts[:-1]) if part.label == label else part for part in parts]
    return [part for part in shorter if part.texts]


def _layout(head: tuple[str, str], parts: list[_Part], width: int, most_lines: int) -> list[str]:
    before, headline = head
    # On a narrow terminal the first line is too wide rather than without the headline.
    lines = _wrap(headline, before, " " * 4, max(width, len(before) + 30), most_lines)
    column = max((len(part.label) for part in parts), default=0) + 4
    for part in parts:
        label = f"  {part.label}".ljust(column)
        for text in part.texts:
            lines += _wrap(text, label, " " * column, width, most_lines)
            label = " " * column
    return lines


def _wrap(text: str, first: str, then: str, width: int, most_lines: int) -> list[str]:
    # A path stays in one piece, to be clicked and copied, even where it is wider than the terminal.
    text = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda match: match.group()[: _LONGEST_WORD - 3] + "...", text)
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )
    if len(lines) > most_lines:
        lines = [*lines[: most_lines - 1], lines[most_lines - 1][: width - 4].rstrip() + " ..."]
    return lines or [first.rstrip()]


def _colored(lines: list[str], verdict: Verdict) -> list[str]:
    outcome = verdict.outcome.upper()
    head = lines[0].replace(outcome, f"{_OUTCOME_COLOR[verdict.outcome]}{outcome}{_RESET}", 1)
    labels = "|".join(_LABELS)
    rest = [re.sub(rf"^  ({labels})(?=  )", rf"  {_DIM}\1{_RESET}", line) for line in lines[1:]]
    places = {_file_line(culprit) for culprit in verdict.culprits} - {""}
    if not places:
        return [head, *rest]
    longest_first = "|".join(re.escape(place) for place in sorted(places, key=len, reverse=True))
    pattern = re.compile(rf"(?:{longest_first})(?!\d)")
    return [pattern.sub(rf"{_BOLD}\g<0>{_RESET}", line) for line in (head, *rest)]
