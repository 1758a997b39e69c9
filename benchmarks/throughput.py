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
import gc
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rankscope.train import products
from rankscope.train.config import SystemConfig, parameter_count
from rankscope.train.flops import FORMULA, peak_flops
from rankscope.train.place import Place, find_place
from throughput_bench import Bench, readied, synchronise
from throughput_turns import keep_stepping, overhead
from throughput_variants import EXPECTED, MODELS, SWEEP

RESULTS = Path(__file__).resolve().parent / "results"


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
        "products": products.choices(),
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
