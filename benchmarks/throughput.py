"""How fast `rankscope train` trains on one GPU: tokens/s, TFLOP/s and MFU, one variant after another.

    python benchmarks/throughput.py                                  gpt2-124m and gpt2-1.5b with their best settings
    python benchmarks/throughput.py --model gpt2-124m --sweep        what each choice is worth
    python benchmarks/throughput.py --model gpt2-1.5b --try training.batch_size=24 --try model.compile=whole,copies=off
    python benchmarks/throughput.py --model gpt2-124m --overhead     everything on against everything off, in turns

Random tokens, fp32 master weights, no network. FLOPs of a token are counted as 6 N + 12 L C T. Every figure is the
median of several windows of steps, each between two synchronisations. Results go to benchmarks/results/, with what was
expected before it was measured.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import step_time
from rankscope.train.config import (
    CheckpointConfig,
    ModelConfig,
    RunConfig,
    SystemConfig,
    TrainingConfig,
    parameter_count,
)
from rankscope.train.faults import Fault
from rankscope.train.flops import FORMULA, flops_per_token, peak_flops
from rankscope.train.forensics.watch import FiniteWatch
from rankscope.train.late_values import LateValues
from rankscope.train.metrics import MetricsFile, Speeds, StepRecord
from rankscope.train.optimizer import make_optimizer
from rankscope.train.place import Place, Spread, choose_dtype, find_place, join_group
from rankscope.train.spread import attention_backend, build_model
from rankscope.train.state.checkpointer import Checkpointer
from rankscope.train.step import TrainStep

RESULTS = Path(__file__).resolve().parent / "results"
ROWS = 50304
CHECKPOINT_EVERY = 10
PACED_CHECKPOINT_EVERY = 100
TURN_SETTLES_S = 0.5

MODELS: dict[str, RunConfig] = {
    "gpt2-124m": RunConfig(
        model=ModelConfig(layers=12, width=768, heads=12, context_length=1024, vocab_size=ROWS),
        training=TrainingConfig(batch_size=64, grad_accum_nums=8),
    ),
    "gpt2-1.5b": RunConfig(
        model=ModelConfig(layers=48, width=1600, heads=25, context_length=1024, vocab_size=ROWS, compile="whole"),
        training=TrainingConfig(batch_size=24, grad_accum_nums=20),
    ),
    "llama-8b": RunConfig(
        system=SystemConfig(strategy="fsdp"),
        model=ModelConfig(
            layers=32,
            width=4096,
            heads=32,
            kv_heads=8,
            ffn=14336,
            context_length=8192,
            vocab_size=128256,
            tied_embeddings=False,
            rope_theta=500000.0,
            gradient_checkpointing=True,
        ),
        training=TrainingConfig(batch_size=1, grad_accum_nums=4),
    ),
    "tiny": RunConfig(
        model=ModelConfig(layers=2, width=64, heads=4, context_length=64, vocab_size=512, compile="off"),
        training=TrainingConfig(batch_size=4, grad_accum_nums=2),
    ),
}

EXPECTED: dict[str, str] = {
    "gpt2-124m": "52 % (50 to 54) before the first measurement. Per token: products 742 MFLOP at about 650 TFLOP/s "
    "1.14 ns, attention 0.19 ns, element-wise work 1.1 MB at 3.8 TB/s 0.30 ns, optimizer and exchange 1.5 %; 1.66 ns "
    "in all, 603,000 tokens/s.",
    "gpt2-1.5b": "57 % (55 to 59) before the first measurement. Per token: products 9.36 GFLOP at about 660 TFLOP/s "
    "14.2 ns, attention 1.6 ns, element-wise work 7.3 MB at 3.8 TB/s 1.9 ns, optimizer and gradients 0.4 ns; 18.1 ns "
    "in all, 55,000 tokens/s.",
    "llama-8b": "38 % before the first measurement: products at about 680 TFLOP/s would give 60 %, blocks computed "
    "again in the backward pass cost a quarter of that, and copies of FSDP on one rank some more.",
    "tiny": "not for measuring: shows that the script works where there is no GPU.",
}

SWEEP: dict[str, tuple[str, ...]] = {
    "gpt2-124m": (
        "",
        "copies=off",
        "model.attention=flash",
        "model.compile=whole",
        "training.loss_chunk_tokens=16384",
        "training.loss_chunk_tokens=32768",
        "training.batch_size=32",
        "training.batch_size=128",
        "model.max_autotune=True",
    ),
    "gpt2-1.5b": (
        "",
        "copies=off",
        "training.batch_size=16",
        "training.batch_size=32",
        "training.loss_chunk_tokens=24576",
        "model.attention=flash",
    ),
    "llama-8b": ("", "training.batch_size=2,model.context_length=4096"),
    "tiny": ("", "training.batch_size=8"),
}


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


def measure(
    name: str,
    changes: str,
    place: Place,
    *,
    windows: int,
    window_steps: int,
    instruments: bool,
    profile: Path | None = None,
) -> dict[str, Any]:
    """One variant, from building the model to its figures."""
    began = time.monotonic()
    with readied(name, changes, place, instruments=instruments) as (bench, attention):
        ready = time.monotonic() - began
        seconds: list[float] = []
        for _ in range(windows):
            start = time.perf_counter()
            for _ in range(window_steps):
                bench.step()
            synchronise(place)
            seconds.append((time.perf_counter() - start) / window_steps)
        if profile is not None:
            write_profile(bench, profile)
    typical = statistics.median(seconds)
    tokens_per_s, tera, mfu = bench.speeds.rates(typical)
    config, training = bench.config, bench.config.training
    return {
        "model": name,
        "changes": changes,
        "parameters": parameter_count(config.model, bench.rows),
        "batch_size": training.batch_size,
        "grad_accum_nums": training.grad_accum_nums,
        "context_length": config.model.context_length,
        "strategy": bench.kind,
        "precision": str(bench.dtype).removeprefix("torch."),
        "copies": bench.spread.copies is not None,
        "attention": attention,
        "compile": config.model.compile,
        "instruments": instruments,
        "probe": "RANKSCOPE_PAGES" in os.environ,
        "step_s": typical,
        "step_s_windows": seconds,
        "tokens_per_s": tokens_per_s,
        "tflops": tera,
        "mfu": mfu,
        "flops_per_token": bench.speeds.flops_per_token,
        "memory_gib": torch.cuda.max_memory_allocated(place.device) / 2**30 if place.device.type == "cuda" else None,
        "ready_after_s": ready,
        "losses": [bench.tools.losses[0], bench.tools.losses[-1]],
    }


def write_profile(bench: Bench, path: Path) -> None:
    """Where the time of one more step goes: kernels by their own time, and matrix products by shape."""
    cuda = bench.place.device.type == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=kinds, record_shapes=True) as recorded:
        bench.step()
        synchronise(bench.place)
    micro = bench.config.training.grad_accum_nums
    lines = [f"{bench.name} {bench.changes or 'as it is'}: ms a micro batch ({micro} in the step), calls, name", ""]
    kernels = [each for each in recorded.key_averages() if each.device_type.name == "CUDA"]
    kernels.sort(key=lambda each: -each.self_device_time_total)
    lines.append(f"{sum(each.self_device_time_total for each in kernels) / 1e3 / micro:9.3f}  all kernels")
    for each in kernels[:70]:
        lines.append(f"{each.self_device_time_total / 1e3 / micro:9.3f} {each.count:6}  {each.key[:200]}")
    lines += ["", "operations by the shapes of their inputs", ""]
    shaped = [each for each in recorded.key_averages(group_by_input_shape=True) if each.self_device_time_total > 0]
    shaped = [each for each in shaped if each.device_type.name == "CPU"]
    shaped.sort(key=lambda each: -each.self_device_time_total)
    for each in shaped[:50]:
        time_ms = each.self_device_time_total / 1e3 / micro
        lines.append(f"{time_ms:9.3f} {each.count:6}  {each.key[:60]:60} {each.input_shapes}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n\n")


@contextlib.contextmanager
def compiler_options(changes: str) -> Iterator[None]:
    """`inductor.a.b=c` among the changes: an option of torch's compiler, for as long as this lasts."""
    import torch._inductor.config as options

    before: list[tuple[Any, str, Any]] = []
    for key, value in named_values(changes):
        if key.startswith("inductor."):
            *path, last = key.removeprefix("inductor.").split(".")
            holder: Any = options
            for part in path:
                holder = getattr(holder, part)
            before.append((holder, last, getattr(holder, last)))
            setattr(holder, last, value)
    try:
        yield
    finally:
        for holder, last, value in reversed(before):
            setattr(holder, last, value)


def named_values(changes: str) -> Iterator[tuple[str, Any]]:
    for change in filter(None, changes.split(",")):
        key, _, text = change.partition("=")
        try:
            yield key, ast.literal_eval(text)
        except (ValueError, SyntaxError):
            yield key, text


def changed(config: RunConfig, changes: str) -> tuple[RunConfig, bool]:
    """`a.b=c,d.e=f` applied; `copies=off` is not a setting of a run but of the way it computes."""
    copies = True
    for key, value in named_values(changes):
        section, _, field = key.partition(".")
        if key == "copies":
            copies = value != "off"
        elif section != "inductor":
            config = replace(config, **{section: replace(getattr(config, section), **{field: value})})
    return config, copies


def synchronise(place: Place) -> None:
    if place.device.type == "cuda":
        torch.cuda.synchronize(place.device)


def forget() -> None:
    """Gives the memory and the compiled code of one variant back before the next."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def tried(name: str, changes: str, place: Place, arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        result = measure(
            name,
            changes,
            place,
            windows=arguments.windows,
            window_steps=arguments.window_steps,
            instruments=arguments.instruments == "on",
            profile=arguments.profile,
        )
    except torch.OutOfMemoryError as error:
        result = {"model": name, "changes": changes, "failed": f"out of memory: {str(error).splitlines()[0]}"}
    except Exception as error:  # noqa: BLE001  one variant that does not work must not cost the others their turn
        text = str(error).strip().splitlines()
        result = {"model": name, "changes": changes, "failed": f"{type(error).__name__}: {text[0] if text else ''}"}
    forget()
    return result


def told(result: dict[str, Any]) -> str:
    label = f"{result['model']:10} {result['changes'] or 'as it is':44}"
    if "failed" in result:
        return f"{label} {result['failed']}"
    mfu = "unknown" if result["mfu"] is None else f"{100 * result['mfu']:.1f} %"
    memory = "" if result["memory_gib"] is None else f"  {result['memory_gib']:.1f} GiB"
    return (
        f"{label} {result['tokens_per_s']:>11,.0f} tokens/s  {result['tflops']:7.1f} TFLOP/s  MFU {mfu}"
        f"  step {1000 * result['step_s']:.1f} ms{memory}  ready after {result['ready_after_s']:.0f} s"
    )


def overhead(name: str, changes: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All on (probe, lines, metrics, finite checks, checkpoints) against all off: both run, and take turns.

    All processes of one are stopped while the other has the GPU; the turns go ABBA, so that what drifts, drifts for
    both. The first part of a turn, in which work that the other had begun is finished, does not count.
    """
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        script = [str(Path(__file__).resolve()), "--model", name, "--try", changes, "--quiet"]
        rankscope = [
            sys.executable,
            "-m",
            "rankscope",
            "run",
            "--nproc-per-node",
            "1",
            "--run-dir",
            str(folder / "run"),
        ]
        launchers = {"off": [sys.executable], "on": rankscope}
        jobs: dict[str, subprocess.Popen[bytes]] = {}
        turns: dict[str, list[tuple[float, float]]] = {state: [] for state in launchers}
        try:
            for state, launcher in launchers.items():
                command = [*launcher, *script, "--instruments", state, "--paced", str(folder / state)]
                with (folder / f"{state}.log").open("wb") as log:
                    jobs[state] = subprocess.Popen(command, stdout=log, stderr=log)
            while not all((folder / f"{state}.ready").exists() for state in jobs):
                gone = [state for state, job in jobs.items() if job.poll() is not None]
                if gone:
                    text = (folder / f"{gone[0]}.log").read_text(errors="replace").strip().splitlines()
                    return {"model": name, "changes": changes, "failed": f"{gone[0]}: {text[-1] if text else ''}"}
                time.sleep(0.1)
            trees = {state: step_time.processes_below(job.pid) for state, job in jobs.items()}
            for number in range(2 * arguments.turns):
                state, other = ("off", "on") if number % 4 in (0, 3) else ("on", "off")
                step_time.send(trees[other], signal.SIGSTOP)
                step_time.send(trees[state], signal.SIGCONT)
                begin = time.perf_counter()
                time.sleep(arguments.turn_s)
                turns[state].append((begin + TURN_SETTLES_S, time.perf_counter()))
            for state, tree in trees.items():
                step_time.send(tree, signal.SIGCONT)
                (folder / f"{state}.stop").touch()
            for job in jobs.values():
                job.wait(120)
            times = {state: json.loads((folder / f"{state}.times").read_text()) for state in jobs}
        finally:
            for job in jobs.values():
                if job.poll() is None:
                    tree = step_time.processes_below(job.pid)
                    step_time.send(tree, signal.SIGKILL)
                    step_time.send(tree, signal.SIGCONT)
    found = {state: [mean_step(times[state], turn) for turn in turns[state]] for state in turns}
    ratios = [on / off for on, off in zip(found["on"], found["off"], strict=True)]
    low, high = step_time.interval([[ratio] for ratio in ratios])
    return {
        "model": name,
        "changes": changes,
        "overhead_ratio": statistics.median(ratios),
        "interval": [low, high],
        "ratio_of_means": statistics.mean(found["on"]) / statistics.mean(found["off"]),
        "ratios": ratios,
        **found,
    }


def mean_step(times: Sequence[float], turn: tuple[float, float]) -> float:
    """Mean length of the steps that ended in the turn; a checkpoint begun in it counts in full."""
    inside = [each for each in times if turn[0] <= each <= turn[1]]
    if len(inside) < 3:
        raise SystemExit(f"a turn held {len(inside)} steps: choose a longer --turn-s or a smaller step")
    return (inside[-1] - inside[0]) / (len(inside) - 1)


def keep_stepping(name: str, changes: str, place: Place, files: Path, *, instruments: bool) -> None:
    """Makes steps until FILES.stop exists; then the time at which each began to be followed is in FILES.times."""
    with readied(name, changes, place, instruments=instruments) as (bench, _):
        files.with_suffix(".ready").touch()
        times: list[float] = []
        while not files.with_suffix(".stop").exists():
            bench.step(checkpoint_every=PACED_CHECKPOINT_EVERY)
            times.append(time.perf_counter())
    files.with_suffix(".times").write_text(json.dumps(times))


def write(path: Path | None, results: Sequence[dict[str, Any]], place: Place) -> Path:
    name = torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else "CPU"
    content = {
        "benchmark": "throughput",
        "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "device": name,
        "peak_tflops": None if (peak := peak_flops(name)) is None else peak / 1e12,
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": _cudnn()},
        "formula": FORMULA,
        "expected": {result["model"]: EXPECTED[result["model"]] for result in results},
        "results": list(results),
    }
    if path is None:
        stem = f"{time.strftime('%Y-%m-%d')}-throughput"
        path = RESULTS / f"{stem}.json"
        number = 1
        while path.exists():
            number += 1
            path = RESULTS / f"{stem}-{number}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def _cudnn() -> int | None:
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Tokens/s, TFLOP/s and MFU of rankscope train on one device.")
    parser.add_argument("--model", action="append", choices=list(MODELS), help="may be given several times")
    parser.add_argument(
        "--try", action="append", dest="tries", metavar="A.B=C,...", help="a variant; may be given several times"
    )
    parser.add_argument("--sweep", action="store_true", help="the built-in list of variants")
    parser.add_argument("--overhead", action="store_true", help="all instruments and the probe, on against off")
    parser.add_argument("--turns", type=int, default=10, help="pairs of turns of --overhead")
    parser.add_argument("--turn-s", type=float, default=3.0, help="seconds of a turn of --overhead")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="add to it where the time of a step goes")
    parser.add_argument("--paced", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--windows", type=int, default=5, help="timed windows of a variant")
    parser.add_argument("--window-steps", type=int, default=3, help="steps of a window")
    parser.add_argument("--budget", type=float, default=240.0, help="no new variant is begun after this many seconds")
    parser.add_argument(
        "--instruments", choices=["on", "off"], default="off", help="what a real run has beside the step"
    )
    parser.add_argument("--out", type=Path, help="file for the results (default: a dated one in benchmarks/results)")
    parser.add_argument("--quiet", action="store_true", help="only the result file")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    place = find_place(SystemConfig())
    names = arguments.model or (["gpt2-124m", "gpt2-1.5b"] if place.device.type == "cuda" else ["tiny"])
    if arguments.paced is not None:
        keep_stepping(names[0], arguments.tries[0], place, arguments.paced, instruments=arguments.instruments == "on")
        return 0
    began = time.monotonic()
    results: list[dict[str, Any]] = []
    for name in names:
        variants = SWEEP[name] if arguments.sweep else tuple(arguments.tries or ("",))
        if not arguments.quiet:
            print(f"{name}: expected {EXPECTED[name]}", flush=True)
        for changes in variants:
            if time.monotonic() - began > arguments.budget:
                results.append({"model": name, "changes": changes, "failed": "not begun: the time was up"})
            elif arguments.overhead:
                results.append(overhead(name, changes, arguments))
            else:
                results.append(tried(name, changes, place, arguments))
            if not arguments.quiet:
                shown = results[-1]
                ratio = shown.get("overhead_ratio")
                print(told(shown) if ratio is None else f"{name}: all on costs {ratio:.4f} times all off", flush=True)
    path = write(arguments.out, results, place)
    if dist.is_initialized():
        dist.destroy_process_group()
    print(f"written to {path}")
    return 0 if any("failed" not in result for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
