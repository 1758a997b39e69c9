"""The command line of `rankscope run`: torchrun's own parser, plus ours."""

from __future__ import annotations

import argparse
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rankscope.errors import UsageError


@dataclass(frozen=True, slots=True)
class RunOptions:
    torch: argparse.Namespace
    """As torchrun would have parsed it."""
    run_dir: Path | None
    probe: bool
    on_hang: str
    on_nan: str
    stall_after_s: float | None
    """None: learned from the job."""
    json: bool


def parse(arguments: list[str]) -> RunOptions:
    """Raises UsageError for anything that torchrun or we would not accept."""
    namespace = build_parser().parse_args(arguments)
    _check(namespace)
    return RunOptions(
        torch=namespace,
        run_dir=namespace.run_dir,
        probe=not namespace.no_probe,
        on_hang=namespace.on_hang,
        on_nan=namespace.on_nan,
        stall_after_s=namespace.stall_after,
        json=namespace.json,
    )


def build_parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    parser: argparse.ArgumentParser = get_args_parser()
    parser.prog = "rankscope run"
    parser.usage = "rankscope run [options] training_script [script arguments]"
    parser.description = (
        "Start a multi-process PyTorch job as torchrun does, and say why it stopped: the rank, the line of your code, "
        "the cause and the fix. Every option of torchrun is accepted with the same meaning."
    )
    ours = parser.add_argument_group("rankscope")
    ours.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="folder for logs, evidence and verdict.json (default: runs/<time>-<name>)",
    )
    ours.add_argument(
        "--on-hang",
        choices=["auto", "stop", "report", "restart"],
        default="auto",
        help="what to do when the job hangs. auto: stop a proven deadlock at once, report a likely one and watch on; "
        "stop: stop likely ones too; report: never stop; restart: let --max-restarts restart it (default: auto)",
    )
    ours.add_argument(
        "--on-nan",
        choices=["report", "stop"],
        default="report",
        help="what to do when a loss, gradient or parameter that trains stops being finite. report: say so once and go "
        "on; stop: stop the job, exit code 76 (default: report)",
    )
    ours.add_argument(
        "--stall-after",
        type=_threshold,
        default=None,
        metavar="auto|SECONDS",
        help="stillness after which a wait that cannot be proven endless is called a likely hang. auto: four times the "
        "longest quiet stretch of this job so far, at least 30 s (default: auto)",
    )
    ours.add_argument(
        "--no-probe",
        action="store_true",
        help="do not inject the probe; the verdict then rests on less evidence",
    )
    ours.add_argument("--json", action="store_true", help="print the verdict as JSON on standard output at the end")
    _leave_abbreviations_to_torch(parser, ours)
    _speak_in_one_line(parser)
    return parser


def _leave_abbreviations_to_torch(parser: argparse.ArgumentParser, ours: argparse._ArgumentGroup) -> None:
    """What torchrun takes for one of its options stays that, also where one of ours begins alike (`--no-p`)."""
    matches: Any = parser._get_option_tuples
    own = {id(action) for action in ours._group_actions}

    def torch_first(text: str) -> list[Any]:
        found = matches(text)
        return [match for match in found if id(match[0]) not in own] or found

    parser._get_option_tuples = torch_first  # type: ignore[method-assign, assignment]


def _speak_in_one_line(parser: argparse.ArgumentParser) -> None:
    def error(message: str) -> NoReturn:
        raise UsageError(f"{message} (see 'rankscope run --help')")

    parser.error = error  # type: ignore[method-assign]


def _threshold(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is neither 'auto' nor a number of seconds") from None
    if not 1.0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} s is not possible: give at least 1 second, or 'auto'")
    return seconds


def _check(namespace: argparse.Namespace) -> None:
    script = namespace.training_script
    if namespace.no_python and namespace.module:
        raise UsageError("--no-python and --module exclude each other: leave one out")
    if namespace.no_python:
        if shutil.which(script) is None:
            raise UsageError(f"no program '{script}' is on the path or at that place")
    elif not namespace.module:
        if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
            raise UsageError(f"'{script}' is a folder without a __main__.py; name the script itself")
        if not os.path.exists(script):
            raise UsageError(f"the script '{script}' does not exist (current folder: {os.getcwd()})")
    processes = namespace.nproc_per_node
    if processes.lstrip("-").isdigit() and int(processes) < 1:
        raise UsageError(f"--nproc-per-node {processes}: a job needs at least 1 process per node")


def launch_config(options: RunOptions) -> tuple[Any, Any, list[str]]:
    """Torch's launch configuration, entry point and arguments. Raises UsageError for impossible combinations."""
    import uuid

    from torch.distributed.run import config_from_args, parse_min_max_nnodes

    args = options.torch
    try:
        _, most_nodes = parse_min_max_nnodes(args.nnodes)
        own_store = (
            args.rdzv_backend == "static" and not args.rdzv_endpoint and args.master_port is None and most_nodes == 1
        )
        if args.standalone or own_store:
            args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", str(uuid.uuid4())
        if args.master_port is None:
            args.master_port = 29500
        config, entry, arguments = config_from_args(args)
    except (ValueError, AssertionError, RuntimeError, TypeError, OSError) as error:
        raise UsageError(f"{error} (see 'rankscope run --help')") from error
    if config.nproc_per_node < 1:
        raise UsageError("--nproc-per-node found no device to run on: give a number")
    return config, entry, arguments
