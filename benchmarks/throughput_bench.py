"""A model that throughput.py trains: ready for its next step, with or without what a real run has beside it."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from rankscope.train.config import CheckpointConfig, RunConfig
from rankscope.train.faults import Fault
from rankscope.train.flops import flops_per_token, peak_flops
from rankscope.train.forensics.watch import FiniteWatch
from rankscope.train.late_values import LateValues
from rankscope.train.metrics import MetricsFile, Speeds, StepRecord
from rankscope.train.optimizer import make_optimizer
from rankscope.train.place import Place, Spread, choose_dtype, join_group
from rankscope.train.spread import attention_backend, build_model
from rankscope.train.state.checkpointer import Checkpointer
from rankscope.train.step import TrainStep
from throughput_variants import MODELS, ROWS, changed, compiler_options

CHECKPOINT_EVERY = 10


@contextlib.contextmanager
def readied(name: str, changes: str, place: Place, *, instruments: bool) -> Iterator[tuple[Bench, str]]:
    """The model after its first steps, and the attention it computes with."""
    if place.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place.device)
    config, _ = changed(MODELS[name], changes)
    with (
        compiler_options(changes),
        attention_backend(config, place) as attention,
        tempfile.TemporaryDirectory() as folder,
    ):
        bench = Bench(name, changes, place, instruments=instruments, folder=Path(folder))
        yield bench, attention
        bench.tools.finish()


class Bench:
    """A model that is trained, ready for its next step."""

    def __init__(self, name: str, changes: str, place: Place, *, instruments: bool, folder: Path) -> None:
        self.name, self.changes, self.place = name, changes, place
        self.config, copies = changed(MODELS[name], changes)
        config, training = self.config, self.config.training
        self.rows = config.model.vocab_size or ROWS
        self.kind: Spread = "fsdp" if config.system.strategy == "fsdp" else "single"
        if self.kind == "fsdp" and not dist.is_initialized():
            join_group(place, "fsdp", config.system)
        self.dtype, _ = choose_dtype(config, place)
        tokens = training.batch_size * training.grad_accum_nums * config.model.context_length
        device_name = torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else "CPU"
        self.speeds = Speeds(tokens, flops_per_token(config.model, self.rows), 1, peak_flops(device_name))
        self.spread = build_model(config, place, self.kind, self.rows, self.dtype, keep_copies=copies)
        self.optimizer = make_optimizer(self.spread.model, training)
        self.tools = Instruments(config, place, self.speeds, on=instruments, folder=folder)
        fault = Fault(None, 0, place.device)
        watch = self.tools.watch
        self._stepper = TrainStep(self.spread, self.optimizer, training, place.device, 1, fault=fault, watch=watch)
        self._source = batches(config, place.device)
        self.steps = 0
        for _ in range(3):  # compiles, allocates, chooses kernels
            self.step()
        if self.tools.checkpointer is not None:
            self.tools.checkpointer.make_room(self.spread.model, self.optimizer)
        synchronise(place)

    def step(self, checkpoint_every: int = CHECKPOINT_EVERY) -> None:
        self.tools.stepped(self.steps, self._stepper.run(self.steps, self._source, stop_wanted=False))
        self.steps += 1
        if self.tools.checkpointer is not None and self.steps > 3 and self.steps % checkpoint_every == 0:
            self.tools.checkpointer.save(self.steps, self.spread.model, self.optimizer, None)


class Instruments:
    """What a real run has beside the step: values read a step late, finite checks, metrics, checkpoints."""

    def __init__(self, config: RunConfig, place: Place, speeds: Speeds, *, on: bool, folder: Path) -> None:
        self.watch = FiniteWatch(place.device, config.forensics.stop_after) if on else None
        self._late = LateValues(place.device)
        self._metrics = MetricsFile(folder / "metrics.jsonl", append=False) if on else None
        self._speeds = speeds
        self._device = place.device
        self.checkpointer: Checkpointer | None = None
        if on:
            checkpoint = CheckpointConfig(dir=str(folder / "checkpoints"), every=CHECKPOINT_EVERY, keep_last=1)
            self.checkpointer = Checkpointer(checkpoint, say=lambda _text: None)
        self.losses: list[float] = []

    def stepped(self, step: int, values: Tensor) -> None:
        self._late.put(step, values)
        if len(self._late) > 1:
            self._hear()

    def finish(self) -> None:
        while len(self._late):
            self._hear()
        if self.checkpointer is not None:
            self.checkpointer.close()

    def _hear(self) -> None:
        heard = self._late.take()
        loss, norm, _, skipped, _ = heard.values
        self.losses.append(loss)
        if self._metrics is None:
            return
        tokens, tera, mfu = self._speeds.rates(heard.seconds)
        print(f"INFO | Step [{heard.step}] | Loss: {loss:.4f} | Grad Norm: {norm:.4f}", file=sys.stderr)
        self._metrics.log(
            StepRecord(heard.step, loss, 0.0, norm, not skipped, heard.seconds, 0, tokens, tera, mfu, None, time.time())
        )


@dataclass(frozen=True, slots=True)
class Ring:
    """A few batches on the device, given out again and again: what is measured is the step, not a disk."""

    inputs: Tensor
    targets: Tensor
    sample_ids: Tensor


def batches(config: RunConfig, device: torch.device) -> Iterator[Ring]:
    generator = torch.Generator().manual_seed(1)
    model, size = config.model, config.training.batch_size
    ring = []
    for number in range(4):
        tokens = torch.randint(model.vocab_size or ROWS, (size, model.context_length + 1), generator=generator)
        moved = tokens.to(device)
        ids = torch.arange(number * size, (number + 1) * size)
        ring.append(Ring(moved[:, :-1].contiguous(), moved[:, 1:].contiguous(), ids))
    while True:
        yield from ring


def synchronise(place: Place) -> None:
    if place.device.type == "cuda":
        torch.cuda.synchronize(place.device)
