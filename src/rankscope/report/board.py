"""The board: a row a rank, or a class of equal ranks, of a job that runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankscope.diagnosis.facts.roots import InStage
from rankscope.diagnosis.rules.numbers.stragglers import between
from rankscope.diagnosis.rules.standing.stages import stages_of
from rankscope.diagnosis.who_waits import LEAST_S, open_call, who_waits
from rankscope.evidence.glance import RankGlance
from rankscope.evidence.model import Phases, Progress
from rankscope.report import progress_words
from rankscope.report.meter import Meter
from rankscope.report.phrases import duration, plain
from rankscope.report.words import sentence
from rankscope.report.words.phrases import rank_list

MOST_ROWS = 16
"""With more ranks than that, equal ones share a row."""
_WINDOW_S = 10.0
_BAR = 12
_STATES = {"D": "in disk wait", "T": "stopped", "t": "traced", "Z": "ended"}
_LEGEND = "time: D data  C forward and backward  W waits for ranks  S saves  o other"


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

    @property
    def likeness(self) -> tuple[str, ...]:
        return (self.doing.partition(" for ")[0], self.step, self.waits)


_HEADS = Row((), "doing", "step", "steps/s", "time", "waits for", "cpu", "memory", "gpu")


class Board:
    """Takes one glance after another, and gives the lines to show. No I/O here."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._meter = Meter()
        self._past: dict[int, deque[RankGlance]] = {}

    def lines(self, glances: Sequence[RankGlance], now: float) -> list[str]:
        known = {each.rank: each.progress for each in glances if each.progress is not None}
        waits = who_waits(known, now)
        rows = [self._row(each, waits, now) for each in glances]
        figures = self._meter.read(known, len(glances), now)
        head = f"{self._title} · {progress_words.status(figures)}"
        shown = rows if len(rows) <= MOST_ROWS else _merged(rows)
        table = _table([_HEADS, *shown])
        return [plain(head), "", *table, "", _LEGEND] if known else [plain(head), "", *table]

    def _row(self, each: RankGlance, waits: Mapping[int, frozenset[int]], now: float) -> Row:
        past = self._past.setdefault(each.rank, deque())
        past.append(each)
        while len(past) > 2 and each.at - past[1].at >= _WINDOW_S:
            past.popleft()
        first, progress = past[0], each.progress
        if not each.alive:
            return Row((each.rank,), "ended", step=f"{progress.steps:,}" if progress and progress.steps else "")
        seconds = each.at - first.at
        row = Row(
            (each.rank,),
            _doing(each, now),
            waits=rank_list(waits.get(each.rank, ())),
            processor=f"{(each.cpu_s - first.cpu_s) / seconds:.0%}" if seconds >= LEAST_S else "",
            memory=_size(each.memory_bytes),
            gpu=_gpu(each),
        )
        if progress is None:
            return row
        before = first.progress
        return Row(
            row.ranks,
            row.doing,
            f"{progress.steps:,}" if progress.steps else "",
            _rate(before, progress, seconds),
            _bar(before.phases if before is not None else None, progress.phases),
            row.waits,
            row.processor,
            row.memory,
            row.gpu,
        )


def _doing(each: RankGlance, now: float) -> str:
    if each.state in _STATES:
        return _STATES[each.state]
    if each.progress is None:
        return "runs" if each.state == "R" else "sleeps"
    call = open_call(each.progress)
    if call is not None and now - call.entered_at >= LEAST_S:
        at = f" at {call.site[0].file.rpartition('/')[2]}:{call.site[0].line}" if call.site else ""
        return plain(f"{call.op}{at} for {duration(now - call.entered_at)}")
    stage = dict(stages_of({each.rank: each.progress})).get(each.rank)
    if each.progress.steps and not isinstance(stage, InStage):
        return "training"  # After its first step a rank that is in no stage trains.
    return plain(sentence(stage)) if stage is not None else "starting"


def _rate(before: Progress | None, now: Progress, seconds: float) -> str:
    if before is None or seconds < LEAST_S or not now.steps:
        return ""
    return f"{max(0, now.steps - before.steps) / seconds:.1f}"


def _bar(before: Phases | None, now: Phases | None) -> str:
    """Where the time went lately, a letter for a twelfth of it."""
    if before is None or now is None:
        return ""
    added = between(before, now)
    whole = added.until - added.since
    if whole <= 0:
        return ""
    # The wait inside of the backward pass is a wait.
    computed = max(0.0, added.forward_s + added.backward_s)
    parts = [("D", added.data_s), ("C", computed), ("W", added.waiting_s), ("S", added.saving_s)]
    text = "".join(letter * round(_BAR * max(0.0, seconds) / whole) for letter, seconds in parts)[:_BAR]
    return text.ljust(_BAR, "o")


def _gpu(each: RankGlance) -> str:
    texts = []
    for gpu in each.gpus:
        busy = f" {gpu.utilization_percent} %" if gpu.utilization_percent is not None else ""
        memory = f" {_size(gpu.memory_used_bytes)}" if gpu.memory_used_bytes is not None else ""
        texts.append(f"{gpu.index}{busy}{memory}")
    return ", ".join(texts)


def _size(number: int) -> str:
    return f"{number / (1 << 30):.1f} GB" if number >= 1 << 30 else f"{number / (1 << 20):.0f} MB"


def _merged(rows: Sequence[Row]) -> list[Row]:
    classes: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        classes.setdefault(row.likeness, []).append(row)
    merged = []
    for alike in classes.values():
        first = alike[0]
        ranks = tuple(rank for row in alike for rank in row.ranks)
        merged.append(
            Row(ranks, first.doing, first.step, first.rate, first.bar, first.waits, first.processor, first.memory)
        )
    return merged


def _table(rows: Sequence[Row]) -> list[str]:
    """Columns that nobody fills are left out."""
    cells = [
        [
            rank_list(row.ranks) if row.ranks else "rank",
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
    widths = {column: max(len(line[column]) for line in cells) for column in kept}
    return ["  ".join(line[column].ljust(widths[column]) for column in kept).rstrip() for line in cells]
