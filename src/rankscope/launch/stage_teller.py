"""Tells the ranks' stages while they pass them, from their pages: what the ranks print themselves stays as it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from rankscope.errors import EvidenceError
from rankscope.evidence.collect import read_environment
from rankscope.evidence.gpus import read_gpus
from rankscope.evidence.model import Stage
from rankscope.evidence.stage_numbers import SharedNumbers, numbered
from rankscope.evidence.stages import NewStages, StageReader, innermost
from rankscope.launch.job import Job, RankProcess
from rankscope.launch.run_state import Stages
from rankscope.probe.page import STAGE_SLOTS
from rankscope.process_status import relevant
from rankscope.report import stage_lines
from rankscope.report.stage_lines import Position, Speaker
from rankscope.report.status_lines import status_lines

_PERIOD_S = 0.25
_STEADY_PERIOD_S = 0.5
"""Once all ranks train and there is nothing to tell: each turn takes processor time from ranks that use all cores."""
_MANY = STAGE_SLOTS // 8
"""Stages of a rank between two turns: with more of them the next turn comes soon, or some are overwritten unseen."""
_LONG_S = 5.0
"""After the first step, only what takes that long is told."""
_LATE_FACTOR = 3.0
_LATE_LEAST_S = 1.0
"""... or that much longer than it ever did before."""
_REPEATS = 3
"""What is done at the same line again and again, and quickly, is told that often."""
_APART_S = (10.0, 60.0, 300.0, 1800.0)
"""When ranks that are in different stages are told of."""
_ASKED_FOR = frozenset({"memory", "lock"})
"""Kinds that are shown always: `rankscope.log_memory`, and imports one rank at a time."""
_LONG_LIVED = frozenset({"training", "job"})
"""Stages that last as long as the program: being in one tells nothing."""


class _Line(NamedTuple):
    at: float
    order: int
    text: str
    asked_for: bool = False


@dataclass(slots=True)
class _Track:
    """What is known of one rank."""

    reader: StageReader
    speaker: Speaker
    inside: dict[int, Stage] = field(default_factory=dict)
    passed: int = 0
    last_words: str = ""
    last_number: int = 0
    moved_at: float = field(default_factory=time.time)
    first_step_at: float | None = None
    """When the first step was done: what begins later is told only where it is long."""
    longest: dict[str, float] = field(default_factory=dict)
    repeats: dict[tuple[str, str], int] = field(default_factory=dict)
    told_still: set[int] = field(default_factory=set)


class StageTeller:
    """Runs in a thread of its own; `finish` tells what the dead have left.

    Everything goes to `keep`. People are `shown` all of it in the mode `on`, else only what the program or an option
    asked for: marks of memory, waits for the import lock. `say` is for what may be trouble.
    """

    def __init__(
        self,
        job: Job,
        mode: Stages,
        keep: Callable[[list[str]], None],
        show: Callable[[list[str]], None],
        say: Callable[[str], None],
    ) -> None:
        self._job = job
        self._mode = mode
        self._keep = keep
        self._show = show
        self._say = say
        self._tracks: dict[int, _Track] = {}
        self._attempt = -1
        self._numbers = SharedNumbers(0)
        self._apart: dict[object, int] = {}
        self._status_due = True
        self._calm = False
        """The last turn had nothing to tell, and few stages to read."""
        self._stop = threading.Event()
        self._busy = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="rankscope-stages", daemon=True)

    def start(self) -> None:
        if self._mode != "off" and self._job.pages is not None:
            self._thread.start()

    def finish(self) -> None:
        """The last stages of ranks that have ended are told now."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
            self._guarded_turn()

    def _run(self) -> None:
        while not self._stop.wait(self._period()):
            self._guarded_turn()

    def _period(self) -> float:
        tracks = self._tracks.values()
        trained = len(tracks) == len(self._job.ranks) > 0 and all(track.first_step_at is not None for track in tracks)
        return _STEADY_PERIOD_S if trained and self._calm else _PERIOD_S

    def _guarded_turn(self) -> None:
        with self._busy:
            try:
                self._turn(time.time())
            except Exception as error:  # noqa: BLE001  a fault of ours must not end the telling; it is told at the end
                self._job.note_problem(f"stages could not be told: {type(error).__name__}: {error}")

    def _turn(self, now: float) -> None:
        job = self._job
        if job.attempt != self._attempt:
            self._attempt, self._tracks, self._apart = job.attempt, {}, {}
            self._numbers = SharedNumbers(len(job.ranks))
            self._status_due = self._status_due and job.attempt == 0
        lines: list[_Line] = []
        many = False
        for track, news in self._read():
            many = many or news.passed - track.passed > _MANY
            lines += self._news(track, news, now)
        self._calm = not lines and not many
        if self._status_due and job.ranks and len(self._tracks) == len(job.ranks):
            self._status_due = False
            self._tell_status()
        if lines:
            lines.sort(key=lambda line: line[:2])
            self._keep([line.text for line in lines])
            shown = [line.text for line in lines if line.asked_for or self._mode == "on"]
            if shown:
                self._show(shown)
        if not job.stopping:
            self._who_is_where(now)

    def _tell_status(self) -> None:
        """Once a job: variables, versions, GPUs."""
        started = {process.rank: process.environment for process in self._job.ranks}
        environments = {
            rank: relevant(read_environment(track.speaker.pid) or started[rank])
            for rank, track in sorted(self._tracks.items())
        }
        gpus = read_gpus()
        lines = [f"rankscope: {line}" for line in status_lines(environments, self._job.versions, gpus)]
        self._keep(lines)
        if self._mode == "on":
            self._show(lines)
        self._job.keep_status(environments, gpus if isinstance(gpus, str) else [gpu.name for gpu in gpus])

    def _track(self, process: RankProcess) -> _Track | None:
        track = self._tracks.get(process.rank)
        if track is None:
            page = self._job.page_of(process)
            if page is None:
                return None
            speaker = Speaker(
                rank=process.rank,
                local_rank=process.local_rank,
                world_size=self._job.world_size,
                pid=int(page.stem.rpartition("-")[2]),
                started_at=process.started_at,
            )
            track = self._tracks[process.rank] = _Track(StageReader(page), speaker)
        return track

    def _read(self) -> list[tuple[_Track, NewStages]]:
        """What is new on each rank's page; a stage that was passed with the number that it has on all ranks."""
        found: dict[int, tuple[_Track, NewStages]] = {}
        for process in self._job.ranks:
            track = self._track(process)
            if track is None:
                continue
            try:
                found[process.rank] = track, track.reader.read()
            except EvidenceError as error:
                self._job.note_problem(str(error))
        self._numbers.ranks = max(self._numbers.ranks, len(self._job.ranks))
        stages = numbered({rank: (*news.begun, *news.ended) for rank, (_, news) in found.items()}, self._numbers)
        return [
            (
                track,
                replace(
                    news,
                    begun=tuple(stages[rank][: len(news.begun)]),
                    ended=tuple(stages[rank][len(news.begun) :]),
                ),
            )
            for rank, (track, news) in found.items()
        ]

    def _news(self, track: _Track, news: NewStages, now: float) -> list[_Line]:
        lines: list[_Line] = []
        if news.missed:
            lines.append(_Line(now, 0, stage_lines.missed_line(news.missed, track.speaker, now)))
        for stage in (*news.begun, *news.ended):
            if stage.kind == "first step" and stage.number:
                track.first_step_at = stage.left_at
        for stage in news.begun:
            if stage.announced and self._worth_announcing(track, stage):
                lines.append(_Line(stage.entered_at, 2 * stage.index, stage_lines.begun_line(stage, track.speaker)))
            if stage.left_at is None:
                track.inside[stage.index] = stage
        for stage in (*news.begun, *news.ended):
            if stage.left_at is None:
                continue
            track.inside.pop(stage.index, None)
            if self._worth_telling(track, stage):
                text = stage_lines.ended_line(stage, track.speaker)
                lines.append(_Line(stage.left_at, 2 * stage.index + 1, text, stage.kind in _ASKED_FOR))
            self._remember(track, stage)
        if news.begun or news.ended:
            track.moved_at = now
        track.passed = news.passed
        return lines + self._still(track, now)

    def _steady(self, track: _Track, stage: Stage) -> bool:
        return track.first_step_at is not None and stage.entered_at > track.first_step_at

    def _worth_announcing(self, track: _Track, stage: Stage) -> bool:
        return self._mode == "on" or not self._steady(track, stage)

    def _worth_telling(self, track: _Track, stage: Stage) -> bool:
        if self._mode == "on" or stage.always or stage.kind in ("training", "finished"):
            return True
        seconds = (stage.left_at or stage.entered_at) - stage.entered_at
        if seconds >= _LONG_S:
            return True
        if not self._steady(track, stage):
            place = stage_lines.place(stage)
            count = track.repeats[stage.label, place] = track.repeats.get((stage.label, place), 0) + 1
            return count <= _REPEATS or seconds >= _LATE_LEAST_S
        before = track.longest.get(stage.label)
        return before is not None and seconds >= max(_LATE_LEAST_S, _LATE_FACTOR * before)

    def _remember(self, track: _Track, stage: Stage) -> None:
        seconds = (stage.left_at or stage.entered_at) - stage.entered_at
        track.longest[stage.label] = max(seconds, track.longest.get(stage.label, 0.0))
        if stage.number:
            track.last_words, track.last_number = stage_lines.stage_words(stage), stage.number

    def _still(self, track: _Track, now: float) -> list[_Line]:
        """After the first step nothing is announced: a long one is told once it is long."""
        lines = []
        for stage in track.inside.values():
            if (
                self._steady(track, stage)
                and now - stage.entered_at >= _LONG_S
                and stage.kind not in _LONG_LIVED
                and stage.index not in track.told_still
            ):
                track.told_still.add(stage.index)
                lines.append(_Line(now, 2 * stage.index, stage_lines.still_line(stage, track.speaker, now)))
        return lines

    def where(self, now: float) -> str:
        """Which rank is in which stage, as the last turn saw it; from any thread."""
        with self._busy:
            positions = self._positions()
        return stage_lines.who_is_where(positions, now, self._job.lang) if positions else ""

    def _positions(self) -> dict[int, Position]:
        living = {process.rank for process in self._job.living()}
        return {rank: self._position(rank, track) for rank, track in self._tracks.items() if rank in living}

    def _who_is_where(self, now: float) -> None:
        living = {process.rank for process in self._job.living()}
        positions = self._positions()
        if len(positions) < 2 or len(positions) < len(living):
            return
        waited = [now - p.since for p in positions.values() if p.stage is not None]
        places = {p.stage.label if p.stage is not None else f"after {p.last_words}" for p in positions.values()}
        if not waited or len(places) < 2:
            return
        due = sum(max(waited) >= limit for limit in _APART_S)
        # The same ranks in the same stages are the same news, told again ever more rarely.
        key = tuple((rank, p.stage.index) for rank, p in sorted(positions.items()) if p.stage is not None)
        if due > self._apart.get(key, 0):
            self._apart[key] = due
            self._say(stage_lines.who_is_where(positions, now, self._job.lang))

    def _position(self, rank: int, track: _Track) -> Position:
        stage = innermost([stage for stage in track.inside.values() if stage.kind not in _LONG_LIVED])
        training = track.first_step_at is not None and stage is None
        return Position(
            stage=stage,
            number=track.last_number if stage is None else self._numbers.expected(rank, stage),
            last_words="training" if training else track.last_words,
            since=stage.entered_at if stage is not None else track.moved_at,
            training=training,
        )
