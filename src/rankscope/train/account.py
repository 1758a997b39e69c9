"""Turns the values of each step, as they arrive a step late, into lines, metrics, pictures and trackers."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from rankscope.train.config import RunConfig
from rankscope.train.metrics import MetricsFile, Pace, Speeds, StepRecord, Tracker, finite_or_none
from rankscope.train.optimizer import learning_rate
from rankscope.train.place import Place
from rankscope.train.trackers import open_trackers
from rankscope.train.voice import ProgressBar, Voice, step_line


class Account:
    def __init__(
        self, config: RunConfig, place: Place, voice: Voice, speeds: Speeds, folder: Path, *, first_step: int, bar: bool
    ) -> None:
        self._config = config
        self._place = place
        self._voice = voice
        self._speeds = speeds
        self._pace = Pace()
        self._records: list[StepRecord] = []
        self._trackers: list[Tracker] = []
        self._bar: ProgressBar | None = None
        if place.rank == 0:
            if config.logging.metrics:
                self._trackers.append(MetricsFile(folder / "metrics.jsonl", append=first_step > 0))
            self._trackers += open_trackers(config, folder)
            self._bar = ProgressBar(config.training.max_steps) if bar else None
        self._first_step = first_step

    def step_ended(self, step: int, loss: float, norm: float, *, skipped: bool, seconds: float) -> None:
        self._pace.took(seconds)
        steps = self._config.training.max_steps
        rate = learning_rate(self._config.training, step)
        left = self._pace.left(steps - step - 1)
        if self._is_told(step):
            self._voice.info(step_line(step, steps, loss, rate, norm, left))
        if self._place.rank != 0:
            return
        tokens_per_s, tera, mfu = self._speeds.rates(seconds)
        record = StepRecord(
            step=step,
            loss=finite_or_none(loss),
            learning_rate=rate,
            grad_norm=finite_or_none(norm),
            finite=not skipped,
            step_s=seconds,
            tokens=(step + 1) * self._speeds.tokens_per_step,
            tokens_per_s=tokens_per_s,
            tflops_per_device=tera,
            mfu=mfu,
            gpu_memory_bytes=_gpu_memory(self._place.device),
            time=time.time(),
        )
        self._records.append(record)
        for tracker in self._trackers:
            tracker.log(record)
        if self._bar is not None:
            self._bar.show(step + 1, loss, tokens_per_s, left)

    def close(self) -> None:
        """Says how fast it was."""
        if self._place.rank != 0:
            return
        if self._bar is not None:
            self._bar.close()
        for tracker in self._trackers:
            tracker.close()
        if not self._records:
            return
        self._voice.info(self._summary())

    def _is_told(self, step: int) -> bool:
        logging = self._config.logging
        last = step == self._config.training.max_steps - 1
        return logging.debug or last or step == self._first_step or step % logging.every == 0

    def _summary(self) -> str:
        # The first step compiles, allocates and connects: it says nothing about speed.
        counted = self._records[1:] or self._records
        tokens_per_s, tera, mfu = self._speeds.rates(sum(record.step_s for record in counted) / len(counted))
        share = "unknown (peak of this device is not in the table)" if mfu is None else f"{100 * mfu:.1f} %"
        first, last = self._records[0].loss, self._records[-1].loss
        losses = f"loss {_number(first)} -> {_number(last)}"
        return f"{losses} | {tokens_per_s:,.0f} tokens/s | {tera:.2f} TFLOP/s per device | MFU {share}"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def _gpu_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
