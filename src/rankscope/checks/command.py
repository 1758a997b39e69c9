"""`rankscope check`: the steps in the order of what depends on what, said as they end."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from rankscope.checks.model import CheckReport, Findings, Flaw, StepResult, joined, result
from rankscope.checks.say import ended, summary
from rankscope.errors import UsageError
from rankscope.given_paths import not_there
from rankscope.spelling import mended, nearest
from rankscope.terminal_text import harmless
from rankscope.versions import versions

SCHEMA = 1
STEPS = {
    "basic": "Python, torch, CUDA, driver and NCCL fit together; a product on every device is right",
    "limits": "open files, locked memory, processes, memory of the cgroup",
    "storage": "run folder, caches, /dev/shm, free space, locks, write speed",
    "network": "MASTER_ADDR resolves and answers, port free, interface, clocks of the nodes",
    "imports": "heavy libraries one by one, each in its own process, with time and memory",
    "single": "a few real training steps on one device",
    "ddp": "ranks find each other, every collective brings the right values, clean-up",
    "links": "latency and bandwidth of every pair of ranks",
}
NEEDS = {"single": ("basic",), "ddp": ("basic",), "links": ("basic",)}
TOTAL_S = 60.0
"""For all steps, where nobody named any and the ranks are started here."""
QUICK_S = 50.0
"""Imports come last where nobody asked for them, with what is left of this."""
LEAST_IMPORTS_S = 4.0
LEAST_S = 1.0
"""A step is not begun with less than this."""
MOST_RANKS = 8
MOST_ASKED = 1024


@dataclass(frozen=True, slots=True)
class Choice:
    steps: tuple[str, ...]
    named: bool
    """The user named the steps; otherwise those that apply are run, within a minute."""
    ranks: int | None
    run_folder: Path
    modules: tuple[str, ...]
    script: Path | None
    import_seconds: float | None
    import_bytes: int | None
    limit_s: float
    json: bool
    repeat_s: float | None = None
    """`single`: one step again and again for so long, on every device."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{mended(message, self)} (see 'rankscope check --help')")


def check_command(arguments: list[str]) -> int:
    """The verb: 0 when every step passed, 1 when one failed, 2 for a mistake in the command."""
    chosen = parse(arguments)
    report = run_steps(
        chosen, os.environ, None if chosen.json else lambda done: print(harmless(ended(done)), flush=True)
    )
    if chosen.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
    else:
        print(harmless(summary(report)), flush=True)
    return 0 if report.ok else 1


def parse(arguments: list[str]) -> Choice:
    listed = "\n".join(f"  {name:<9}{text}" for name, text in STEPS.items())
    parser = _Parser(
        prog="rankscope check",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Is this machine fit to train? Runs the named steps, or all that apply.\n\nsteps:\n" + listed,
        epilog="On several machines start it on each of them as you would start the job, with torchrun or srun:\n"
        "  torchrun --nnodes 2 --nproc-per-node 4 --rdzv-endpoint HOST:29500 -m rankscope.checks.ddp",
    )
    parser.add_argument("steps", nargs="*", metavar="step", help="which steps (default: all that apply)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON on standard output")
    parser.add_argument("--ranks", type=int, help="ranks of ddp and links (default: one a GPU, or 2)")
    parser.add_argument("--run-dir", type=Path, default=Path("runs"), help="where runs will go (default: runs)")
    parser.add_argument("--modules", default="", help="imports: these modules, separated by commas")
    parser.add_argument("--script", type=Path, help="imports: the modules that this script imports")
    parser.add_argument("--import-seconds", type=float, help="imports: limit for each module (default: 60)")
    parser.add_argument(
        "--import-memory", type=_bytes, metavar="SIZE", help="imports: limit for each module, as 4G (default: half)"
    )
    parser.add_argument(
        "--repeat",
        type=_seconds,
        nargs="?",
        const=30.0,
        metavar="SECONDS",
        help="single: also one and the same step again and again on every device, compared bit by bit: tells a device "
        "that computes wrongly now and then (default: 30)",
    )
    parser.add_argument("--limit", type=float, default=30.0, help="seconds in which ranks must find each other")
    found = parser.parse_args(arguments)
    unknown = [step for step in found.steps if step not in STEPS]
    if unknown:
        close = "; leave it out for all" if unknown[0] == "all" else nearest(unknown[0], STEPS, "; ")
        raise UsageError(f"no step '{unknown[0]}'{close}; the steps are {', '.join(STEPS)}")
    if found.ranks is not None and found.ranks < 1:
        raise UsageError(f"--ranks {found.ranks}: a check needs at least 1 rank")
    if found.ranks is not None and found.ranks > MOST_ASKED:
        raise UsageError(f"--ranks {found.ranks}: all of them run on this machine; give at most {MOST_ASKED}")
    if found.ranks is not None and found.steps and not {"ddp", "links"} & set(found.steps):
        raise UsageError("--ranks belongs to the steps 'ddp' and 'links': rankscope check ddp --ranks 4")
    for option, given in (("--limit", found.limit), ("--import-seconds", found.import_seconds)):
        if given is not None and not 0 < given <= 86400:
            raise UsageError(f"{option} {given:g}: give seconds, up to a day, as 60")
    if found.import_memory is not None and found.import_memory <= 0:
        raise UsageError("--import-memory 0 is too little: write 4G or 500M")
    if found.repeat is not None and "single" not in found.steps:
        raise UsageError("--repeat belongs to the step 'single': rankscope check single --repeat 60")
    if found.script is not None and not found.script.is_file():
        raise UsageError(not_there(str(found.script), what="the script"))
    wanted = set(found.steps) or set(STEPS)
    return Choice(
        steps=tuple(step for step in STEPS if step in wanted),
        named=bool(found.steps),
        ranks=found.ranks,
        run_folder=found.run_dir,
        modules=tuple(name.strip() for name in found.modules.split(",") if name.strip()),
        script=found.script,
        import_seconds=found.import_seconds,
        import_bytes=found.import_memory,
        limit_s=found.limit,
        json=found.json,
        repeat_s=found.repeat,
    )


def run_steps(
    chosen: Choice, environment: Mapping[str, str], on_end: Callable[[StepResult], None] | None = None
) -> CheckReport:
    begun = time.monotonic()
    done: dict[str, StepResult] = {}
    quick = not chosen.named and "RANK" not in environment
    for step in sorted(chosen.steps, key=lambda step: step == "imports" and not chosen.named):
        missing = [need for need in NEEDS.get(step, ()) if need in done and done[need].status == "fail"]
        started = time.monotonic()
        left = TOTAL_S - (started - begun) if quick else float("inf")
        if missing:
            found = Findings(skipped=f"needs '{missing[0]}', which failed")
        elif left < LEAST_S:
            found = _no_time(step)
        else:
            imports_s = min(left, max(LEAST_IMPORTS_S, QUICK_S - (started - begun)))
            found = _run(step, chosen, environment, left, imports_s)
        done[step] = result(step, found, time.monotonic() - started)
        if on_end is not None:
            on_end(done[step])
    steps = tuple(done[step] for step in chosen.steps)
    return CheckReport(
        schema=SCHEMA,
        host=socket.gethostname(),
        ok=all(step.status != "fail" for step in steps),
        steps=steps,
        seconds=round(time.monotonic() - begun, 2),
        versions=versions(),
    )


def _no_time(step: str) -> Findings:
    """Not passed: whoever trusts the exit code must not take it for a look that was never taken."""
    fix = f"run it alone (rankscope check {step}), and see what else runs on this machine"
    return Findings(flaws=(Flaw("slow-rank", f"no time was left for this step: the others took {TOTAL_S:g} s", fix),))


def _run(step: str, chosen: Choice, environment: Mapping[str, str], left_s: float, imports_s: float) -> Findings:
    if step == "basic":
        from rankscope.checks import basic

        return basic.check_basic(min(basic.LIMIT_S, left_s))
    if step == "limits":
        from rankscope.checks.limits import check_limits

        return check_limits()
    if step == "storage":
        from rankscope.checks.storage import check_storage

        return check_storage(chosen.run_folder, environment)
    if step == "network":
        from rankscope.checks.network import check_network

        return check_network(environment, chosen.limit_s)
    if step == "imports":
        return _imports(chosen, imports_s)
    if step == "single":
        from rankscope.checks import repeat, single

        found = single.check_single(min(single.LIMIT_S, left_s))
        return found if chosen.repeat_s is None else joined((found, repeat.check_repeat(chosen.repeat_s)))
    return _together(step, chosen, environment, left_s)


def _imports(chosen: Choice, left_s: float) -> Findings:
    from rankscope.checks.imports import LIMIT_S, ImportLimits, check_imports, imported_by, installed_heavy

    folder = None
    modules = list(chosen.modules)
    if chosen.script is not None:
        modules += imported_by(chosen.script)
        folder = chosen.script.parent.absolute()
    quick = not chosen.named and not modules
    limits = ImportLimits(
        seconds=chosen.import_seconds or LIMIT_S,
        bytes=chosen.import_bytes,
        total_s=left_s if quick else None,
    )
    return check_imports(list(dict.fromkeys(modules)) or installed_heavy(), limits, folder)


def _together(step: str, chosen: Choice, environment: Mapping[str, str], most_s: float) -> Findings:
    from rankscope.checks.ddp import check_ddp
    from rankscope.checks.links import check_links
    from rankscope.checks.world import is_rank, stray_variables

    stray = stray_variables(environment)
    if stray.flaws and step == "ddp":
        return stray
    ranks = chosen.ranks or _default_ranks(environment)
    if step == "ddp":
        return check_ddp(ranks, environment, chosen.limit_s, most_s)
    if ranks == 1 and not is_rank(environment):
        return Findings(skipped="one rank has no pairs; give --ranks")
    return check_links(ranks, environment, chosen.limit_s, most_s)


def _default_ranks(environment: Mapping[str, str]) -> int:
    from rankscope.evidence.gpus import read_gpus

    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        named = [part for part in visible.split(",") if part.strip() not in ("", "-1")]
        return min(len(named), MOST_RANKS) if named else 2
    seen = read_gpus()
    return 2 if isinstance(seen, str) or not seen else min(len(seen), MOST_RANKS)


def _bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number, unit = (text[:-1], units[text[-1].upper()]) if text and text[-1].upper() in units else (text, 1)
    try:
        return int(float(number) * unit)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"'{text}' is no size: write 4G or 500M") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"'{text}' is no time: write seconds, up to a day, as 60")
    return seconds
