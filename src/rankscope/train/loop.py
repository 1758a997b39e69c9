"""Training, from top to bottom."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from rankscope.train.account import Account
from rankscope.train.batches import Loader, open_loader
from rankscope.train.config import RunConfig, embedding_rows, parameter_count
from rankscope.train.faults import Fault
from rankscope.train.flops import FORMULA, flops_per_token, peak_flops
from rankscope.train.forensics.investigation import EXIT_CODE, Investigation, Repeatable
from rankscope.train.forensics.watch import FiniteWatch
from rankscope.train.late_values import LateValues
from rankscope.train.loss import chunk_tokens
from rankscope.train.metrics import Speeds
from rankscope.train.optimizer import make_optimizer
from rankscope.train.place import Place, choose_dtype, choose_spread, find_place, join_group
from rankscope.train.plan import RunPlan
from rankscope.train.profiling import StepProfiler
from rankscope.train.spread import SpreadModel, attention_backend, build_model, compile_wanted, products_wanted
from rankscope.train.state.checkpointer import Checkpointer
from rankscope.train.state.export import export
from rankscope.train.step import TrainStep
from rankscope.train.stopping import StopWish
from rankscope.train.voice import Voice


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that the steps are made with."""

    place: Place
    voice: Voice
    spread: SpreadModel
    optimizer: torch.optim.AdamW
    loader: Loader
    stepper: TrainStep
    checkpointer: Checkpointer
    watch: FiniteWatch | None
    investigation: Investigation | None
    speeds: Speeds
    log_folder: Path
    logits: str
    """Their shape, for people."""


@dataclass(frozen=True, slots=True)
class Left:
    """How the steps came to an end."""

    done: int
    """Steps of the whole run that were made."""
    code: int
    stopped: bool


def train(plan: RunPlan, voice: Voice) -> int:
    """Trains as planned on this rank; returns its exit code."""
    config = plan.config
    stop = StopWish()
    place = find_place(config.system)
    rows = embedding_rows(config.model, plan.tokenizer_size)
    spread_kind, why = choose_spread(config, place, rows)
    _prepare_torch(config, place)
    join_group(place, spread_kind, config.system, verbose=config.logging.debug)
    with attention_backend(config, place) as attention:
        if place.rank == 0:
            ranks = "1 rank" if place.world_size == 1 else f"{place.world_size} ranks"
            voice.info(f"strategy {spread_kind} on {ranks}: {why}")
            voice.info(f"attention {attention}; compile {compile_wanted(config, place, spread_kind)}")
            if products_wanted(config, place, spread_kind) == "tried":
                voice.info("products: the first step tries kernels for each, about half a minute (model.products)")
        dtype, dtype_why = choose_dtype(config, place)
        spread = build_model(config, place, spread_kind, rows, dtype)
        parts = _parts(plan, place, voice, spread, rows)
        if place.rank == 0:
            voice.info(f"precision {dtype_why}")
            _describe(config, voice, rows, parts.speeds)
            if config.logging.debug:
                _describe_parameters(parts)
        first_step = _resume(parts)
        bar = plan.progress_bar
        account = Account(config, place, voice, parts.speeds, parts.log_folder, first_step=first_step, bar=bar)
        if dist.is_initialized():
            voice.info(f"[Rank {place.rank}] Reaching barrier before training loop")
            dist.barrier()
            voice.info(f"[Rank {place.rank}] Barrier passed, entering training loop")
        left = _steps(config, parts, account, stop, first_step)
        stop.steps_are_over()
        account.close()
        _finish(config, parts, left)
    stop.forget()
    return left.code


def _parts(plan: RunPlan, place: Place, voice: Voice, spread: SpreadModel, rows: int) -> Parts:
    config = plan.config
    optimizer = make_optimizer(spread.model, config.training)
    fault = Fault(plan.fault, place.rank, place.device)
    fault.plant(spread.model)
    watch = FiniteWatch(place.device, config.forensics.stop_after) if config.forensics.enabled else None
    stepper = TrainStep(spread, optimizer, config.training, place.device, place.world_size, fault=fault, watch=watch)
    investigation = None
    if watch is not None:
        investigation = Investigation(
            Repeatable(spread.model, stepper.gradients, stepper.module_by_module),
            place=place.name,
            directory=Path(config.checkpoint.dir),
            context={
                "config": asdict(config),
                "rows": rows,
                "dtype": str(spread.model.dtype).removeprefix("torch."),
                "device": place.device.type,
                "fault": None if plan.fault is None else asdict(plan.fault),
            },
            values_shown=config.forensics.values_shown,
            layers_shown=config.forensics.layers_shown,
        )
    parts = Parts(
        place=place,
        voice=voice,
        spread=spread,
        optimizer=optimizer,
        loader=open_loader(plan, place),
        stepper=stepper,
        checkpointer=Checkpointer(config.checkpoint, say=voice.info, timeout_s=config.system.timeout_s),
        watch=watch,
        investigation=investigation,
        speeds=_speeds(config, place, rows),
        log_folder=_log_folder(plan),
        logits=_logits(config, rows),
    )
    voice.memory("POST-MODEL", _gpu_memory(place))
    return parts


def _resume(parts: Parts) -> int:
    """The first step to make."""
    found = parts.checkpointer.load_latest(parts.spread.model, parts.optimizer, parts.loader)
    if found is None:
        return 0
    if parts.spread.copies is not None:
        parts.spread.copies.refresh()
    if parts.stepper.loss_scale is not None and "loss_scale" in parts.checkpointer.extra:
        parts.stepper.loss_scale.load_state_dict(parts.checkpointer.extra["loss_scale"])
    return found


def _steps(config: RunConfig, parts: Parts, account: Account, stop: StopWish, first_step: int) -> Left:
    """Where a device computes, values of a step are read when the next one is under way: it never waits for the host.
    What ends the run early is among them, the same on every rank, so that all leave after the same step."""
    batches = iter(parts.loader)
    late = LateValues(parts.place.device)
    done, code, stopped = first_step, 0, False
    with StepProfiler(config, parts.place, parts.log_folder, parts.voice.info) as profiler:
        for step in range(first_step, config.training.max_steps):
            profiler.before(step)
            hear = _FirstBatch(parts.voice, parts.place, parts.logits) if step == first_step else _nothing
            late.put(step, parts.stepper.run(step, batches, stop_wanted=stop.wanted, hear=hear))
            done = step + 1
            if step == first_step and config.checkpoint.every:
                parts.checkpointer.make_room(parts.spread.model, parts.optimizer)
            stop.moved()
            save = config.checkpoint.every and done % config.checkpoint.every == 0 and done < config.training.max_steps
            # Before a checkpoint the host catches up: a step that was left out must not be saved as one made.
            while len(late) > (0 if save else late.least_waiting) and not (code or stopped):
                code, stopped = _heard(late, account, parts)
            if code or stopped:
                break
            if save:
                _save(parts, done)
        while len(late):
            if code:
                late.take()  # not applied any more: the weights are still those of the step that was looked into
            else:
                code, _ = _heard(late, account, parts)
    return Left(done, code, stopped)


def _heard(late: LateValues, account: Account, parts: Parts) -> tuple[int, bool]:
    """Accounts for the oldest step. Returns the exit code, if it ends the run, and whether a rank was asked to stop."""
    heard = late.take()
    step, (loss, norm, stops, skipped, ended) = heard.step, heard.values
    account.step_ended(step, loss, norm, skipped=bool(skipped), seconds=heard.seconds)
    if not ended or parts.watch is None or parts.investigation is None:
        return 0, stops > 0
    kept = parts.watch.kept(step)
    assert kept is not None, "a step is heard of at most one step later, and the watch keeps three"
    parts.optimizer.zero_grad(set_to_none=True)
    parts.investigation.run(kept, loss, norm, print)
    return EXIT_CODE, False


def _save(parts: Parts, done: int) -> None:
    scale = parts.stepper.loss_scale
    extra = {} if scale is None else {"loss_scale": scale.state_dict()}
    parts.checkpointer.save(done, parts.spread.model, parts.optimizer, parts.loader, extra)


def _finish(config: RunConfig, parts: Parts, left: Left) -> None:
    """The end, the same for all ranks."""
    if left.stopped and parts.place.rank == 0:
        parts.voice.info(
            f"stopping after {left.done} of {config.training.max_steps} steps, because the run was asked to"
        )
    if left.code == 0 and (left.stopped or config.checkpoint.at_end) and parts.checkpointer.last_saved != left.done:
        _save(parts, left.done)
        parts.checkpointer.wait()
        if config.checkpoint.export_safetensors and parts.place.rank == 0:
            export(Path(config.checkpoint.dir), Path(config.checkpoint.dir), say=parts.voice.info)
    parts.checkpointer.close()
    parts.loader.close()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _logits(config: RunConfig, rows: int) -> str:
    """As the loss sees them: never all at one time."""
    shape = [config.training.batch_size, config.model.context_length, rows]
    heads = config.model.multi_token_heads
    at_once = min(shape[0] * shape[1], chunk_tokens(rows, config.training.loss_chunk_tokens))
    times = f", {heads} times" if heads > 1 else ""
    return f"logits shape: {shape}{times} ({at_once} tokens at one time)"


def _nothing(_stage: str) -> None:
    return


class _FirstBatch:
    """Says each stage of the first batch once; waits for the device, so that what it says is true."""

    def __init__(self, voice: Voice, place: Place, logits: str) -> None:
        self._voice = voice
        self._device = place.device
        self._rank = place.rank
        self._words = {
            "begun": "Starting first batch - moving data to device",
            "data moved": "Data moved to device, starting forward pass",
            "forward completed": f"Forward pass completed, {logits}",
            "backward completed": "Backward pass completed",
            "optimizer": "Gradients exchanged, starting optimizer step",
        }
        self._said: set[str] = set()

    def __call__(self, stage: str) -> None:
        if stage in self._said:
            return
        self._said.add(stage)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._voice.info(f"[Rank {self._rank}] {self._words[stage]}")


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


def _describe_parameters(parts: Parts) -> None:
    """A sharded one with its whole shape."""
    for name, parameter in parts.spread.model.named_parameters():
        kind = str(parameter.dtype).removeprefix("torch.")
        parts.voice.info(f"parameter {name}: {list(parameter.shape)}, {parameter.numel():,} values, {kind}")


def _log_folder(plan: RunPlan) -> Path:
    folder = Path(plan.folder) / plan.config.logging.dir
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _gpu_memory(place: Place) -> tuple[int, int] | None:
    if place.device.type != "cuda":
        return None
    return torch.cuda.memory_allocated(place.device), torch.cuda.max_memory_allocated(place.device)
