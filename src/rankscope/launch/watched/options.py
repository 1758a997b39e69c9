"""The command line of `rankscope watch`."""

from __future__ import annotations

import argparse
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rankscope.errors import UsageError
from rankscope.launch.options import seconds, threshold
from rankscope.launch.run_state import OnBadNumbers, OnHang, Stages
from rankscope.report.notices.options import add_notify
from rankscope.report.notices.targets import Target
from rankscope.report.words.languages import add_lang, chosen_language


@dataclass(frozen=True, slots=True)
class WatchOptions:
    command: list[str]
    run_dir: Path | None
    on_hang: OnHang
    on_nan: OnBadNumbers
    on_corrupt: OnBadNumbers
    stall_after_s: float | None
    """None: learned from the job."""
    stages: Stages
    json: bool
    grace_s: int
    notify: tuple[Target, ...] = ()
    lang: str = "en"


def parse(arguments: list[str]) -> WatchOptions:
    """Raises UsageError where there is no command, or none of that name."""
    named = build_parser().parse_args(arguments)
    command = named.command[1:] if named.command[:1] == ["--"] else named.command
    if not command:
        raise UsageError("no command: rankscope watch -- accelerate launch train.py")
    if command[0].endswith(".py") and os.path.isfile(command[0]) and shutil.which(command[0]) is None:
        raise UsageError(
            f"'{command[0]}' is a script, not a launcher: write rankscope watch -- python {command[0]}, or "
            f"rankscope run {command[0]}"
        )
    if shutil.which(command[0]) is None:
        raise UsageError(f"no program '{command[0]}' is on the path or at that place (current folder: {os.getcwd()})")
    return WatchOptions(
        command=command,
        run_dir=named.run_dir,
        on_hang=named.on_hang,
        on_nan=named.on_nan,
        on_corrupt=named.on_corrupt,
        stall_after_s=named.stall_after,
        stages=named.stages,
        json=named.json,
        grace_s=named.grace,
        notify=tuple(named.notify),
        lang=chosen_language(named.lang, os.environ),
    )


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rankscope watch",
        usage="rankscope watch [options] -- COMMAND [arguments]",
        description="Start any command, find the ranks that it starts, by whatever launcher, and say why they stopped. "
        "The exit code is the command's own, unless it was stopped because of a hang (75) or of its numbers (76).",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="folder for evidence and verdict.json (default: runs/<time>-<name>)"
    )
    parser.add_argument(
        "--on-hang",
        choices=["auto", "stop", "report"],
        default="auto",
        help="what to do when the job hangs. auto: stop a proven deadlock at once, report a likely one and watch on; "
        "stop: stop likely ones too; report: never stop (default: auto)",
    )
    parser.add_argument("--on-nan", choices=["report", "stop"], default="report", help="as for 'rankscope run'")
    parser.add_argument("--on-corrupt", choices=["report", "stop"], default="report", help="as for 'rankscope run'")
    parser.add_argument(
        "--stall-after",
        type=threshold,
        default=None,
        metavar="auto|SECONDS",
        help="stillness after which a wait that cannot be proven endless is called a likely hang (default: auto)",
    )
    parser.add_argument(
        "--stages",
        choices=["auto", "on", "off"],
        default="auto",
        help="tell what every rank is doing, from its first line on (default: auto)",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        default=30,
        metavar="SECONDS",
        help="how long the command may take to end after a signal, before it is killed (default: 30)",
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON on standard output at the end")
    add_notify(parser)
    add_lang(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    def error(message: str) -> NoReturn:
        raise UsageError(f"{message} (see 'rankscope watch --help')")

    parser.error = error  # type: ignore[method-assign]
    return parser
