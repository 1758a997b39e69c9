"""The verdict on the terminal: the last thing a person sees of a bad run, at most 20 lines."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

from rankscope.diagnosis.verdict import Culprit, KnownMessage, Outcome, SignOfLife, Verdict
from rankscope.report.plain_text import plain, short_path
from rankscope.report.words.languages import Language, language
from rankscope.terminal_text import columns, padded, wrapped

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
    words = language(verdict.language)
    parts = _parts(verdict, folder, words)
    if verdict.outcome == "ok":
        head, parts = _ok_head(verdict, done, words), [part for part in parts if part.label in _WHEN_WELL]
    else:
        head = _bad_head(verdict, words)
    lines = _fit(head, [part for part in parts if part.texts], width, words)
    return "\n".join(_colored(lines, verdict, words) if color else lines)


def _ok_head(verdict: Verdict, done: str, words: Language) -> tuple[str, str]:
    facts = [f"rankscope: OK, {words.counted(verdict.world_size, '{count} rank', '{count} ranks')}"]
    if verdict.started_at is not None and verdict.ended_at is not None:
        facts.append(words.duration(verdict.ended_at - verdict.started_at))
    facts += [done] if done else []
    # Of a job that goes on only what was seen of it can be said.
    return (", ".join(facts), "") if not verdict.because else (f"{', '.join(facts)}: ", plain(verdict.headline))


def _bad_head(verdict: Verdict, words: Language) -> tuple[str, str]:
    """What stands before the headline, and the headline."""
    return f"rankscope: {title(verdict, words)}: ", plain(verdict.headline)


def title(verdict: Verdict, words: Language) -> str:
    """`HANG, proven after 12 s`."""
    # How certain the cause is says nothing where there is none: somebody stopped the job.
    certainty = f", {words.label(verdict.certainty)}" if verdict.cause is not None else ""
    time_ = verdict.detected_after_s
    after = words.label(" after {time}", time=words.duration(time_)) if time_ is not None else ""
    return f"{verdict.outcome.upper()}{certainty}{after}"


def _parts(verdict: Verdict, folder: str, words: Language) -> list[_Part]:
    where = plain(short_path(folder))
    # Where nobody can tell, what it may be is the answer; the last lines are among what was seen.
    unknown = verdict.outcome == "unknown"
    others = [f"{item.cause} ({words.label(item.certainty)}): {item.because}" for item in verdict.alternatives[:2]]
    causes = [f"{item.cause}: {item.because}. {item.next}".rstrip(" .") for item in verdict.alternatives[:5]]
    return [
        _Part("culprit", tuple(_culprit_texts(verdict.culprits, words))),
        _Part("victims", (words.ranks(verdict.victims),) if verdict.victims else ()),
        _Part("because", _texts(verdict.because[:6])),
        _Part("fix", _texts(verdict.fix[:3])),
        _Part("may be", _texts(causes if unknown else ())),
        _Part("also possible", _texts(() if unknown else others)),
        _Part("to confirm", _texts(verdict.next[:2])),
        _Part("messages", _texts(_message_texts(verdict.messages, words))),
        _Part("stages", _texts(_stage_texts(verdict.stages, words))),
        _Part("last signs", _texts(() if unknown else _sign_texts(verdict.signs_of_life, words))),
        _Part("note", _texts(verdict.notes)),
        _Part("see", _texts(verdict.references[:2])),
        _Part("report", (f"{where}/{verdict.report}",) if where and verdict.report else ()),
        _Part("evidence", (words.label("{where}  (again: rankscope diagnose {where})", where=where),) if where else ()),
    ]


def _message_texts(messages: tuple[KnownMessage, ...], words: Language) -> list[str]:
    """What the known messages signify; those of culprits first, and each meaning once."""
    by_meaning: dict[tuple[str, str], list[int]] = {}
    order = {"culprit": 0, "victim": 1, "neutral": 2}
    for message in sorted(messages, key=lambda message: order[message.role]):
        ranks = by_meaning.setdefault((message.role, message.meaning), [])
        if message.rank is not None:
            ranks.append(message.rank)
    texts = []
    for (role, meaning), ranks in by_meaning.items():
        who = f"{words.ranks(ranks)}: " if ranks else ""
        texts.append(f"{who}{meaning}" + ("" if role == "neutral" else f" ({words.label(role)})"))
    return texts[:_MOST_GROUPS]


def _stage_texts(stages: Mapping[int, str], words: Language) -> list[str]:
    """`ranks 0-2 after stage 9, First optimizer step done`: those that stand alike are one text, most of them first."""
    alike: dict[str, list[int]] = {}
    for rank, stage in sorted(stages.items()):
        alike.setdefault(stage, []).append(rank)
    groups = sorted(alike.items(), key=lambda group: -len(group[1]))
    texts = [words.label("{ranks} {stage}", ranks=words.ranks(ranks), stage=stage) for stage, ranks in groups]
    rest = sum(len(ranks) for _, ranks in groups[_MOST_GROUPS:])
    return [*texts[:_MOST_GROUPS], words.label("and {count} more ranks", count=rest)] if rest else texts


def _sign_texts(signs: tuple[SignOfLife, ...], words: Language) -> list[str]:
    """The ranks that have been silent the longest, with their last lines."""
    texts = []
    for sign in signs[:3]:
        silent = ""
        if sign.silent_s is not None and sign.silent_s >= 1:
            silent = words.label(", silent for {time}", time=words.duration(sign.silent_s))
        elif sign.ago_s is not None:
            silent = words.label(", {time} ago", time=words.span(sign.ago_s))
        whose = words.ranks([sign.rank]) if sign.rank is not None else words.label("the log")
        at = f" {time.strftime('%H:%M:%S', time.localtime(sign.at))}" if sign.at is not None else ""
        texts.append(f"{whose}{at}{silent}: {sign.line[:120]}")
    if len(signs) > 3:
        texts.append(words.label("and {count} more ranks", count=len(signs) - 3))
    return texts


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(filter(None, map(plain, texts)))


def _culprit_texts(culprits: tuple[Culprit, ...], words: Language) -> list[str]:
    """Those that do the same at the same place are one text; a single one says what it does in a second."""
    groups: dict[object, list[Culprit]] = {}
    for culprit in culprits:
        groups.setdefault((culprit.process, culprit.where, culprit.doing), []).append(culprit)
    texts = []
    shown = list(groups.values())[:_MOST_GROUPS]
    for group in shown:
        place = "  ".join(filter(None, (_who(group, words), _place(group[0]))))
        stages = {culprit.stage for culprit in group}
        stage = next(iter(stages)) if len(stages) == 1 else None
        doing = plain("; ".join(filter(None, (group[0].doing, stage))))
        if len(groups) == 1:
            texts += [place, doing] if doing else [place]
        else:
            texts.append(f"{place}: {doing}" if doing else place)
    if len(groups) > len(shown):
        rest = len(culprits) - sum(map(len, shown))
        places = len(groups) - len(shown)
        texts.append(words.label("and {count} more at {places} other places", count=rest, places=places))
    return texts


def _who(group: list[Culprit], words: Language) -> str:
    ranks = sorted({culprit.rank for culprit in group if culprit.rank is not None})
    hosts = sorted({plain(culprit.host) for culprit in group if culprit.host})
    pids = sorted({culprit.pid for culprit in group if culprit.pid is not None})
    facts = []
    if hosts:
        facts.append(hosts[0] if len(hosts) == 1 else words.label("{count} hosts", count=len(hosts)))
    if len(pids) == 1:
        facts.append(f"pid {pids[0]}")
    details = f" ({', '.join(facts)})" if facts else ""
    return _kind(group[0].process, ranks, words) + details


def _kind(process: str, ranks: list[int], words: Language) -> str:
    names = words.ranks(ranks) if ranks else None
    if process == "launcher":
        return words.label("the launcher")
    if process == "dataloader-worker":
        of = words.label("data-loading worker of {ranks}", ranks=names)
        return of if names else words.label("a data-loading worker")
    if process == "child":
        return words.label("child process of {ranks}", ranks=names) if names else words.label("a child process")
    return names or words.label("a rank that never started")


def _place(culprit: Culprit) -> str:
    if culprit.where is None:
        return ""
    return f"{_file_line(culprit)}  {plain(culprit.where.function)}".rstrip()


def _file_line(culprit: Culprit) -> str:
    return f"{plain(short_path(culprit.where.file))}:{culprit.where.line}" if culprit.where else ""


def _fit(head: tuple[str, str], parts: list[_Part], width: int, words: Language) -> list[str]:
    """All of it in 20 lines: what matters least goes first; texts are cut only when that is not enough."""
    lines = _layout(head, parts, width, _LONGEST_TEXT, words)
    for label, least in _DROPPING:
        while len(lines) > MOST_LINES and any(part.label == label and len(part.texts) > least for part in parts):
            parts = _without_last(parts, label)
            lines = _layout(head, parts, width, _LONGEST_TEXT, words)
    for most_lines in (4, 3, 2, 1):
        if len(lines) > MOST_LINES:
            lines = _layout(head, parts, width, most_lines, words)
    return lines


def _without_last(parts: list[_Part], label: str) -> list[_Part]:
    shorter = [_Part(part.label, part.texts[:-1]) if part.label == label else part for part in parts]
    return [part for part in shorter if part.texts]


def _layout(head: tuple[str, str], parts: list[_Part], width: int, most_lines: int, words: Language) -> list[str]:
    before, headline = head
    # On a narrow terminal the first line is too wide rather than without the headline.
    lines = _wrap(headline, before, " " * 4, max(width, columns(before) + 30), most_lines)
    column = max((columns(words.label(part.label)) for part in parts), default=0) + 4
    for part in parts:
        label = padded(f"  {words.label(part.label)}", column)
        for text in part.texts:
            lines += _wrap(text, label, " " * column, width, most_lines)
            label = " " * column
    return lines


def _wrap(text: str, first: str, then: str, width: int, most_lines: int) -> list[str]:
    # A path stays in one piece, to be clicked and copied, even where it is wider than the terminal.
    text = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda match: match.group()[: _LONGEST_WORD - 3] + "...", text)
    lines = wrapped(text, width, first, then)
    if len(lines) > most_lines:
        lines = [*lines[: most_lines - 1], _shortened(lines[most_lines - 1], width - 4)]
    return [line.rstrip() for line in lines]


def _shortened(line: str, width: int) -> str:
    while line and columns(line) > width:
        line = line[:-1]
    return line.rstrip() + " ..."


def _colored(lines: list[str], verdict: Verdict, words: Language) -> list[str]:
    outcome = verdict.outcome.upper()
    head = lines[0].replace(outcome, f"{_OUTCOME_COLOR[verdict.outcome]}{outcome}{_RESET}", 1)
    labels = "|".join(map(words.label, _LABELS))
    rest = [re.sub(rf"^  ({labels})(?=  )", rf"  {_DIM}\1{_RESET}", line) for line in lines[1:]]
    places = {_file_line(culprit) for culprit in verdict.culprits} - {""}
    if not places:
        return [head, *rest]
    longest_first = "|".join(re.escape(place) for place in sorted(places, key=len, reverse=True))
    pattern = re.compile(rf"(?:{longest_first})(?!\d)")
    return [pattern.sub(rf"{_BOLD}\g<0>{_RESET}", line) for line in (head, *rest)]
