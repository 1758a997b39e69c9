"""Training, from top to bottom."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rankscope.train.account import Account
from rankscope.train.batches import open_loader
from rankscope.train.config import RunConfig, embedding_rows, parameter_count
from rankscope.train.faults import Fault
from rankscope.train.flops import FORMULA, flops_per_token, peak_flops
from rankscope.train.late_values import LateValues
from rankscope.train.metrics import Speeds
from rankscope.train.optimizer import make_optimizer
from rankscope.train.place import Place, choose_dtype, choose_spread, find_place, join_group
from rankscope.train.plan import RunPlan
from rankscope.train.spread import attention_backend, build_model, compile_wanted
from rankscope.train.step import TrainStep
from rankscope.train.stopping import StopWish
from rankscope.train.voice import Voice


def train(plan: RunPlan, voice: Voice) -> int:
    """Trains as planned on this rank; returns its exit code."""
    config = plan.config
    stop = StopWish()

    # Place, and the ranks beside it.
    place = find_place(config.system)
    first = place.rank == 0
    rows = embedding_rows(config.model, plan.tokenizer_size)
    spread_kind, why = choose_spread(config, place, rows)
    dtype, dtype_why = choose_dtype(config, place)
    _prepare_torch(config, place)
    join_group(place, spread_kind, config.system)

    with attention_backend(config, place) as attention:
        if first:
            voice.info(f"strategy {spread_kind} on {place.world_size} ranks: {why}")
            voice.info(f"precision {dtype_why}; attention {attention}; compile {compile_wanted(config, place)}")

        # Model, optimizer, data.
        spread = build_model(config, place, spread_kind, rows, dtype)
        optimizer = make_optimizer(spread.model, config.training)
        fault = Fault(plan.fault, place.rank, place.device)
        fault.plant(spread.model)
        loader = open_loader(plan, place)
        stepper = TrainStep(spread, optimizer, config.training, place.device, place.world_size, fault)
        voice.memory("POST-MODEL", _gpu_memory(place))
        speeds = _speeds(config, place, rows)
        if first:
            _describe(config, voice, rows, speeds)

        # Where to begin.
        start = 0
        steps = config.training.max_steps
        account = Account(config, place, voice, speeds, _log_folder(plan), first_step=start, bar=plan.progress_bar)
        if dist.is_initialized():
            dist.barrier()

        # The steps. Values of a step are read when the next one is under way: the device never waits for the host.
        batches = iter(loader)
        late = LateValues()
        done = start
        for step in range(start, steps):
            if fault.skips(step):
                continue
            hear = _FirstBatch(voice, place) if step == start else _nothing
            result = stepper.run(step, batches, stop_wanted=stop.wanted, first_batch=hear)
            late.put(step, result.values)
            stepper.forget_gradients()
            done = step + 1
            if len(late) > 1 and _take(late, account):
                break
        while len(late):
            _take(late, account)

        # The end, the same for all ranks.
        account.close()
        loader.close()
        if first and done < steps:
            voice.info(f"stopped after step {done} of {steps}, because the run was asked to")
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
    stop.forget()
    return 0


def _take(late: LateValues, account: Account) -> bool:
    """Accounts for the oldest step; true where a rank was asked to stop, which all ranks learn here alike."""
    step, (loss, norm, stops, skipped) = late.take()
    account.step_ended(step, loss, norm, bool(skipped))
    return stops > 0


def _nothing(_stage: str) -> None:
    return


class _FirstBatch:
    """Says each stage of the first batch once; waits for the device, so that what it says is true."""

    def __init__(self, voice: Voice, place: Place) -> None:
        self._voice = voice
        self._device = place.device
        self._said: set[str] = set()

    def __call__(self, stage: str) -> None:
        if stage in self._said:
            return
        self._said.add(stage)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._voice.info(f"First batch: {stage}")


def _prepare_torch(config: RunConfig, place: Place) -> None:
    torch.manual_seed(config.system.seed + place.rank)
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(config.system.threads or max(1, cores // place.local_world_size))
    if config.system.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def _speeds(config: RunConfig, place: Place, rows: int) -> Speeds:
    training = config.training
    name = torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else "CPU"
    samples = training.batch_size * training.grad_accum_nums * place.world_size
    return Speeds(
        tokens_per_step=samples * config.model.context_length,
        flops_per_token=flops_per_token(config.model, rows),
        devices=place.world_size,
        peak_flops=peak_flops(name),
    )


def _describe(config: RunConfig, voice: Voice, rows: int, speeds: Speeds) -> None:
    model = config.model
    voice.info(
        f"model: {parameter_count(model, rows):,} parameters, {model.layers} layers, width {model.width}, "
        f"{rows:,} tokens in the vocabulary; {speeds.tokens_per_step:,} tokens a step"
    )
    peak = "unknown" if speeds.peak_flops is None else f"{speeds.peak_flops / 1e12:.1f} TFLOP/s"
    voice.info(f"{FORMULA}; {speeds.flops_per_token:.3e} FLOP a token, peak {peak}")


def _log_folder(plan: RunPlan) -> Path:
    folder = Path(plan.folder) / plan.config.logging.dir
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _gpu_memory(place: Place) -> tuple[int, int] | None:
    if place.device.type != "cuda":
        return None
    return torch.cuda.memory_allocated(place.device), torch.cuda.max_memory_allocated(place.device)
