"""`rankscope gpus`: a table of this machine's GPUs, who uses them, and what `--gpus auto` would choose."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import msgspec
from msgspec.structs import asdict

from rankscope.errors import UsageError
from rankscope.evidence.gpu_state import GpuProcess, GpuState, read_gpu_states
from rankscope.launch.gpu_choice import busy, choose, grave_xid, parse_wish, unfit, visible_indices
from rankscope.report.plain_text import plain
from rankscope.spelling import mended

_GIB = 1 << 30


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{mended(message, self)} (see 'rankscope gpus --help')")


def gpus_command(arguments: list[str]) -> int:
    """The verb: 0 with GPUs that can be used, 1 without, 2 for a mistake."""
    parser = _Parser(
        prog="rankscope gpus",
        description="The GPUs of this machine: use, memory, temperature, health, who holds their memory, and which of "
        "them 'rankscope run --gpus auto' would take.",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON on standard output")
    parser.add_argument("--gpus", default="auto", metavar="auto[:N]", help="show this choice (default: auto)")
    chosen = parser.parse_args(arguments)
    wish = parse_wish(chosen.gpus)
    states = read_gpu_states()
    if isinstance(states, str):
        if chosen.json:
            sys.stdout.write(msgspec.json.encode({"gpus": [], "missing": states}).decode() + "\n")
        else:
            print(f"no GPU to show: {states}")
        return 1
    try:
        choice = choose(states, wish, visible_indices(states, os.environ))
        indices, reasons = choice.indices, choice.reasons
    except UsageError as error:
        indices, reasons = (), (str(error),)
    if chosen.json:
        content = {
            "gpus": [{**asdict(state), "unfit": unfit(state), "busy": busy(state)} for state in states],
            "choice": indices,
            "reasons": reasons,
        }
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n")
    else:
        print(table(states))
        print(f"\n--gpus {chosen.gpus} would take: {', '.join(map(str, indices)) or 'none'}")
        for reason in reasons:
            print(f"  {plain(reason)}")
    return 0 if indices else 1


def table(states: Sequence[GpuState]) -> str:
    """One line a GPU, and one for each process that holds its memory."""
    rows = [("GPU", "name", "busy", "memory used", "free", "temp", "ECC", "Xid", "state")]
    for state in states:
        rows.append(
            (
                str(state.index),
                state.name,
                _or_dash(state.utilization_percent, "{} %"),
                _or_dash(_gib(state.memory_used_bytes), "{:.1f} GiB"),
                _or_dash(_free(state), "{:.1f} GiB"),
                _or_dash(state.temperature_c, "{} °C"),
                _or_dash(state.ecc_uncorrected, "{}"),
                ",".join(map(str, dict.fromkeys(state.xids))) or "-",
                _state(state),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number:
            lines += [f"     {_process(process)}" for process in states[number - 1].processes]
    return "\n".join(lines)


def _state(state: GpuState) -> str:
    problem = unfit(state)
    if problem is not None:
        return f"NOT FIT: {problem}"
    notes = " (memory repair pending: reset it)" if state.remap_pending else ""
    if grave_xid(state) is not None:
        notes += f" (Xid {grave_xid(state)}: reset it, unless that was done)"
    return ("in use" if busy(state) is not None else "free") + notes


def _process(process: GpuProcess) -> str:
    held = "?" if process.memory_bytes is None else f"{process.memory_bytes / _GIB:.1f} GiB"
    if process.command is None:
        return f"pid {process.pid}  {held}  not visible from here: of another container, or gone"
    mark = f"  LEFT BEHIND: {process.left_behind} (kill -9 {process.pid})" if process.left_behind else ""
    return f"pid {process.pid}  {held}  {process.user}  {plain(process.command)[:80]}{mark}"


def _gib(count: int | None) -> float | None:
    return None if count is None else count / _GIB


def _free(state: GpuState) -> float | None:
    if state.memory_total_bytes is None or state.memory_used_bytes is None:
        return None
    return (state.memory_total_bytes - state.memory_used_bytes) / _GIB


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
