"""The board: a row a rank, or a class of equal ranks, of a job that runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rankscope.diagnosis.facts.roots import InStage
from rankscope.diagnosis.rules.numbers.stragglers import between
from rankscope.diagnosis.rules.standing.stages import stages_of
from rankscope.diagnosis.who_waits import LEAST_S, open_call, who_waits
from rankscope.evidence.glance import RankGlance
from rankscope.evidence.model import Phases, Progress
from rankscope.report import progress_words
from rankscope.report.meter import Meter
from rankscope.report.plain_text import plain, size
from rankscope.report.progress_words import QUIET_S, Figures
from rankscope.report.words.languages import Language, language
from rankscope.terminal_text import columns, padded

MOST_ROWS = 16
"""With more ranks than that, equal ones share a row."""
_WINDOW_S = 10.0
_BAR = 12
_STATES = {"D": "in disk wait", "T": "stopped", "t": "traced", "Z": "ended"}
_LEGEND = "time: D data  C forward and backward  W waits for ranks  S saves  o other"


Shares = tuple[tuple[str, float], ...]
"""`data`, `compute`, `waiting`, `saving`, `other` → its share of the time; together 1."""
_LETTERS = {"data": "D", "compute": "C", "waiting": "W", "saving": "S", "other": "o"}


@dataclass(frozen=True, slots=True)
class Row:
    ranks: tuple[int, ...]
    doing: str
    step: str = ""
    rate: str = ""
    bar: str = ""
    waits: str = ""
    processor: str = ""
    memory: str = ""
    gpu: str = ""
    steps: int = 0
    steps_per_s: float | None = None
    """None before two looks."""
    shares: Shares = ()
    awaited: frozenset[int] = frozenset()
    """The ranks that it waits for."""
    ended: bool = False
    at: str = ""
    """What it does, without how long: by that ranks are alike."""

    @property
    def likeness(self) -> tuple[str, ...]:
        return (self.at or self.doing, self.step, self.waits)


_HEADS = ("rank", "doing", "step", "steps/s", "time", "waits for", "cpu", "memory", "gpu")


@dataclass(frozen=True, slots=True)
class Look:
    """What a board shows at a moment."""

    head: str
    figures: Figures
    ranks: tuple[Row, ...]
    """One row a rank."""
    rows: tuple[Row, ...]
    """As shown: equal ranks share a row where there are many."""
    probed: bool
    """Pages were found: steps, times and waits are known."""


class Board:
    """Takes one glance after another, and gives what to show. No I/O here."""

    def __init__(self, title: str, lang: str = "en") -> None:
        self._title = title
        self._lang = lang
        self._words = language(lang)
        self._meter = Meter()
        self._past: dict[int, deque[RankGlance]] = {}

    def lines(self, glances: Sequence[RankGlance], now: float) -> list[str]:
        look = self.look(glances, now)
        table = _table(look.rows, self._words)
        return [look.head, "", *table, "", self._words.label(_LEGEND)] if look.probed else [look.head, "", *table]

    def look(self, glances: Sequence[RankGlance], now: float) -> Look:
        known = {each.rank: each.progress for each in glances if each.progress is not None}
        waits = who_waits(known, now)
        rows = [self._row(each, waits, now) for each in glances]
        figures = self._meter.read(known, len(glances), now)
        head = plain(f"{self._title} · {progress_words.status(figures, self._lang)}")
        shown = rows if len(rows) <= MOST_ROWS else _merged(rows)
        return Look(head, figures, tuple(rows), tuple(shown), bool(known))

    def _row(self, each: RankGlance, waits: Mapping[int, frozenset[int]], now: float) -> Row:
        past = self._past.setdefault(each.rank, deque())
        past.append(each)
        while len(past) > 2 and each.at - past[1].at >= _WINDOW_S:
            past.popleft()
        first, progress = past[0], each.progress
        steps = progress.steps if progress is not None else 0
        if not each.alive:
            return Row(
                (each.rank,), self._words.label("ended"), step=f"{steps:,}" if steps else "", steps=steps, ended=True
            )
        seconds = each.at - first.at
        stepped = first.progress is None or steps > first.progress.steps
        doing, at = _doing(each, now, self._words, stepped=stepped)
        row = Row(
            (each.rank,),
            doing,
            at=at,
            waits=self._words.rank_list(waits.get(each.rank, ())),
            awaited=waits.get(each.rank, frozenset()),
            processor=f"{(each.cpu_s - first.cpu_s) / seconds:.0%}" if seconds >= LEAST_S else "",
            memory=size(each.memory_bytes),
            gpu=_gpu(each),
        )
        if progress is None:
            return row
        before = first.progress
        rate = _rate(before, progress, seconds)
        shares = _shares(before.phases if before is not None else None, progress.phases)
        return replace(
            row,
            step=f"{steps:,}" if steps else "",
            rate=f"{rate:.1f}" if rate is not None and steps else "",
            bar=_bar(shares),
            steps=steps,
            steps_per_s=rate,
            shares=shares,
        )


def _doing(each: RankGlance, now: float, words: Language, *, stepped: bool) -> tuple[str, str]:
    """In words, and the same without how long."""
    label = words.label
    if each.state in _STATES:
        return label(_STATES[each.state]), ""
    if each.progress is None:
        return label("runs") if each.state == "R" else label("sleeps"), ""
    call = open_call(each.progress)
    if call is not None and now - call.entered_at >= LEAST_S:
        site = f"{call.site[0].file.rpartition('/')[2]}:{call.site[0].line}" if call.site else ""
        at = plain(label("{call} at {place}", call=call.op, place=site) if site else call.op)
        return label("{what} for {time}", what=at, time=words.duration(now - call.entered_at)), at
    stage = dict(stages_of({each.rank: each.progress})).get(each.rank)
    if each.progress.steps and not isinstance(stage, InStage):
        # After its first step a rank that is in no stage trains.
        left = max((call.left_at or now for call in each.progress.calls), default=now)
        if stepped or now - left < QUIET_S:
            return label("training"), ""
        return label("{what} for {time}", what=label("in no call"), time=words.duration(now - left)), "in no call"
    return plain(words.sentence(stage)) if stage is not None else label("starting"), ""


def _rate(before: Progress | None, now: Progress, seconds: float) -> float | None:
    if before is None or seconds < LEAST_S:
        return None
    return max(0, now.steps - before.steps) / seconds


def _shares(before: Phases | None, now: Phases | None) -> Shares:
    """Where the time went lately."""
    if before is None or now is None:
        return ()
    added = between(before, now)
    whole = added.until - added.since
    if whole <= 0:
        return ()
    # The wait inside of the backward pass is a wait.
    spent = {
        "data": added.data_s,
        "compute": added.forward_s + added.backward_s,
        "waiting": added.waiting_s,
        "saving": added.saving_s,
    }
    shares, left = [], 1.0
    for name, seconds in spent.items():
        share = min(left, max(0.0, seconds) / whole)
        shares.append((name, share))
        left -= share
    return (*shares, ("other", left))


def _bar(shares: Shares) -> str:
    """A letter for a twelfth of the time."""
    if not shares:
        return ""
    text = "".join(_LETTERS[name] * round(_BAR * share) for name, share in shares if name != "other")[:_BAR]
    return text.ljust(_BAR, "o")


def _gpu(each: RankGlance) -> str:
    texts = []
    for gpu in each.gpus:
        busy = f" {gpu.utilization_percent} %" if gpu.utilization_percent is not None else ""
        memory = f" {size(gpu.memory_used_bytes)}" if gpu.memory_used_bytes is not None else ""
        texts.append(f"{gpu.index}{busy}{memory}")
    return ", ".join(texts)


def _merged(rows: Sequence[Row]) -> list[Row]:
    classes: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        classes.setdefault(row.likeness, []).append(row)
    merged = []
    for alike in classes.values():
        first = alike[0]
        merged.append(replace(first, ranks=tuple(rank for row in alike for rank in row.ranks), gpu=""))
    return merged


def _table(rows: Sequence[Row], words: Language) -> list[str]:
    """Columns that nobody fills are left out."""
    cells = [list(map(words.label, _HEADS))]
    cells += [
        [
            words.rank_list(row.ranks),
            row.doing,
            row.step,
            row.rate,
            row.bar,
            row.waits,
            row.processor,
            row.memory,
            row.gpu,
        ]
        for row in rows
    ]
    kept = [column for column in range(len(cells[0])) if any(line[column] for line in cells[1:])]
    widths = {column: max(columns(line[column]) for line in cells) for column in kept}
    return ["  ".join(padded(line[column], widths[column]) for column in kept).rstrip() for line in cells]
