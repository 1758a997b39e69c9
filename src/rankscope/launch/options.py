"""The command line of `rankscope run`: torchrun's own parser, plus ours."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rankscope.errors import UsageError
from rankscope.launch import limits
from rankscope.launch.refusals import refuse_mistakes, said_by_torch
from rankscope.launch.run_state import OnBadNumbers, OnHang, Stages
from rankscope.report.notices.options import add_notify
from rankscope.report.notices.targets import Target
from rankscope.report.words.languages import add_lang, chosen_language
from rankscope.spelling import mended


@dataclass(frozen=True, slots=True)
class RunOptions:
    torch: argparse.Namespace
    """As torchrun would have parsed it."""
    run_dir: Path | None
    probe: bool
    on_hang: OnHang
    on_nan: OnBadNumbers
    on_corrupt: OnBadNumbers
    stall_after_s: float | None
    """None: learned from the job."""
    json: bool
    report: bool
    """Leave a page after a good run too."""
    stages: Stages
    merge: bool
    """Equal lines of several ranks are shown once."""
    prefix: str | None
    """A template of the user's own for what stands before the ranks' lines."""
    board: bool
    """In place of the ranks' output, on a terminal."""
    page: tuple[str, int] | None
    """Where the live page listens; port 0: any."""
    serialize_imports: str
    memory_limit: int | None
    low_memory: bool
    comm_debug: bool
    comm_timeout_s: int | None = None
    """What torch's own default of a group's timeout becomes; None leaves it."""
    gpus: str | None = None
    """As the user wrote it; None leaves the choice to CUDA_VISIBLE_DEVICES."""
    wait_for_gpus: bool = False
    node_key_file: Path | None = None
    restart_always: bool = False
    notify: tuple[Target, ...] = ()
    retry_codes: bool = False
    grace_s: int | None = None
    """None: torch's own, and 5 s after Ctrl-C."""
    lang: str = "en"
    """Of what is said: `--lang`, else by the environment."""
    processes_given: bool = True
    """The user said how many ranks a node gets."""


def parse(arguments: list[str]) -> RunOptions:
    """Raises UsageError for anything that torchrun or we would not accept."""
    parser = build_parser()
    processes = next(action for action in parser._actions if action.dest == "nproc_per_node")
    usual, processes.default = processes.default, None
    namespace = _parsed(parser, arguments)
    given = namespace.nproc_per_node is not None or "PET_NPROC_PER_NODE" in os.environ
    if namespace.nproc_per_node is None:
        namespace.nproc_per_node = usual
    refuse_mistakes(namespace)
    return RunOptions(
        torch=namespace,
        run_dir=namespace.run_dir,
        probe=not namespace.no_probe,
        on_hang=namespace.on_hang,
        on_nan=namespace.on_nan,
        on_corrupt=namespace.on_corrupt,
        stall_after_s=namespace.stall_after,
        json=namespace.json,
        report=namespace.report,
        stages=namespace.stages,
        merge=not namespace.no_merge,
        prefix=namespace.prefix,
        board=namespace.board,
        page=namespace.page,
        serialize_imports=namespace.serialize_imports,
        memory_limit=namespace.memory_limit,
        low_memory=namespace.low_memory,
        comm_debug=namespace.comm_debug,
        comm_timeout_s=namespace.comm_timeout,
        gpus=namespace.gpus,
        wait_for_gpus=namespace.wait,
        node_key_file=namespace.node_key_file,
        restart_always=namespace.restart_always,
        notify=tuple(namespace.notify),
        retry_codes=namespace.retry_codes,
        grace_s=namespace.grace,
        lang=chosen_language(namespace.lang, os.environ),
        processes_given=given,
    )


_LOOPBACK = "127.0.0.1"


class _NoPort(Exception):
    """`--page` was followed by the script."""


def _parsed(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """The port of `--page` may be left out, also right before the script."""
    try:
        return parser.parse_args(arguments)
    except _NoPort as found:
        text = str(found)
    at = next(
        (at for at in range(1, len(arguments)) if arguments[at] == text and "--page".startswith(arguments[at - 1])),
        None,
    )
    if at is None or text.lstrip("-").isdigit():
        raise UsageError(f"--page {text}: give a port up to 65535, as in --page 8080, or an address with one")
    return _parsed(parser, [*arguments[: at - 1], "--page=auto", *arguments[at:]])


def _prefix(text: str) -> str:
    try:
        text.format(rank=0, local_rank=0, gpu=0, host="")
    except (KeyError, IndexError, ValueError, AttributeError):
        raise argparse.ArgumentTypeError(
            f"'{text}' has a field that is not known: write {{rank}}, {{local_rank}}, {{gpu}} or {{host}}"
        ) from None
    return text


def _bind(text: str) -> tuple[str, int]:
    """`8080`, `auto`, `0.0.0.0:8080`."""
    host, _, port = text.rpartition(":")
    if text == "auto":
        return _LOOPBACK, 0
    if not port.isdecimal() or int(port) > 65535 or "/" in host:
        raise _NoPort(text)
    return host.strip("[]") or _LOOPBACK, int(port)


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
        "--on-corrupt",
        choices=["report", "stop"],
        default="report",
        help="what to do when the job goes on and its numbers are wrong: calls were paired that do not belong "
        "together, or replicas no longer agree. report: say so once and go on; stop: stop the job, exit code 76 "
        "(default: report)",
    )
    ours.add_argument(
        "--stall-after",
        type=threshold,
        default=None,
        metavar="auto|SECONDS",
        help="stillness after which a wait that cannot be proven endless is called a likely hang. auto: four times the "
        "longest quiet stretch of this job so far, at least 30 s (default: auto)",
    )
    ours.add_argument(
        "--restart-always",
        action="store_true",
        help="let --max-restarts restart whatever failed, as torchrun does. Without it a proven cause that stays until "
        "somebody changes something (skipped collectives, a mistake in the program, the same exception at the same "
        "line once more) is not restarted",
    )
    ours.add_argument(
        "--retry-codes",
        action="store_true",
        help="let the exit code tell a scheduler what to do: 81 where the verdict proves that the same command fails "
        "again, 82 where it should run on another host; otherwise the code is the usual one",
    )
    ours.add_argument(
        "--grace",
        type=seconds,
        metavar="SECONDS",
        help="how long ranks that were asked to end may take, to save a checkpoint say, before they are killed "
        "(default: torchrun's 30 s, and 5 s after Ctrl-C). SIGUSR1 and SIGUSR2 are passed on to the ranks that handle "
        "them, and end nothing",
    )
    ours.add_argument(
        "--no-probe",
        action="store_true",
        help="do not inject the probe; the verdict then rests on less evidence",
    )
    ours.add_argument(
        "--stages",
        choices=["auto", "on", "off"],
        default="auto",
        help="what every rank is doing, from its first line on: arguments, tokenizer, model, logger, process group, "
        "first step; also versions and variables. auto: kept in stages.log of the run's folder, up to the first step "
        "and then what takes long; on: all of it, and shown; off: nothing (default: auto)",
    )
    ours.add_argument(
        "--no-merge",
        action="store_true",
        help="show a line that several ranks print at the same moment once for each of them, not once for all (R0-7:)",
    )
    ours.add_argument(
        "--prefix",
        type=_prefix,
        metavar="TEMPLATE",
        help="what stands before every line of a rank's output, with {rank}, {local_rank}, {gpu} (its physical number) "
        "and {host}: --prefix '{host}/GPU{gpu}: '. Lines of several ranks are then not shown as one (default: GPU0:, "
        "or R0: without GPUs)",
    )
    ours.add_argument(
        "--board",
        action="store_true",
        help="on a terminal, show a row a rank in place of the ranks' output: what it does, step, speed, where its "
        "time goes, for whom it waits, memory, GPU, as 'rankscope top' does. The output is in output.log of the run's "
        "folder",
    )
    ours.add_argument(
        "--page",
        nargs="?",
        type=_bind,
        const=(_LOOPBACK, 0),
        metavar="PORT",
        help="show the same in a browser while the job runs, and the report when it has ended; prints the address, "
        "which holds a random token. On this machine alone (loopback) unless an address is given, as in 0.0.0.0:8080. "
        "metrics below that address is for Prometheus",
    )
    ours.add_argument(
        "--serialize-imports",
        choices=["auto", "on", "off"],
        default="auto",
        help="let the ranks of a host import torch and other large packages one at a time. auto: when the free memory "
        "would not do for all at once (default: auto)",
    )
    ours.add_argument(
        "--memory-limit",
        type=_size,
        metavar="SIZE",
        help="limit the address space of each rank (RLIMIT_AS), as in 100G; CUDA itself reserves much of it",
    )
    ours.add_argument(
        "--low-memory", action="store_true", help="small NCCL buffers and thrifty allocators; prints what it sets"
    )
    ours.add_argument(
        "--comm-debug",
        action="store_true",
        help="let NCCL and torch.distributed tell what they do; NCCL's lines go to comm/ in the run's folder and "
        "are read by the diagnosis",
    )
    ours.add_argument(
        "--comm-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="how long a collective may take before torch gives it up, where the program does not say (torch: 600 with "
        "NCCL, 1800 with gloo); NCCL_TIMEOUT=SECONDS means the same",
    )
    ours.add_argument("--json", action="store_true", help="print the verdict as JSON on standard output at the end")
    add_notify(ours)
    add_lang(ours)
    ours.add_argument(
        "--report",
        action="store_true",
        help="leave report.html in the run's folder after a good run too; after a bad one it is always there",
    )
    ours.add_argument(
        "--gpus",
        metavar="0,3|auto[:N]",
        help="the GPUs of this node for the job, as 'rankscope gpus' numbers them; auto: all that are free, "
        "auto:2: the two freest. Without --nproc-per-node, one rank for each",
    )
    ours.add_argument(
        "--node-key-file",
        type=Path,
        metavar="FILE",
        help="a file with a secret that all nodes of this job know, mode 0600: what the launchers say to each other is "
        "sealed with it (default: RANKSCOPE_KEY, or a key in the --run-dir that the nodes share)",
    )
    ours.add_argument("--wait", action="store_true", help="with --gpus: wait until enough of them are free")
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
        if "training_script" in message:
            message = (
                "there is no script to run: name it after the options, as in rankscope run --nproc-per-node 2 train.py"
            )
        if any(message == f"unrecognized arguments: {word}" for word in ("-n", "-np", "-g")):
            message += "; did you mean '--nproc-per-node'?"
        raise UsageError(f"{mended(message, parser)} (see 'rankscope run --help')")

    parser.error = error  # type: ignore[method-assign]


_LONGEST_S = 100 * 86400
"""More than that a wait of the interpreter may refuse, in the middle of a run."""


def threshold(text: str) -> float | None:
    """Of `--stall-after`; None for `auto`."""
    if text == "auto":
        return None
    try:
        given = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is neither 'auto' nor a number of seconds") from None
    if not 1.0 <= given < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} s is not possible: give at least 1 second, or 'auto'")
    if given > _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} s is more than 100 days: --on-hang report stops nothing")
    return given


def seconds(text: str) -> int:
    """Of `--grace`."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of seconds")
    if int(text) > _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} s is more than 100 days: write 3600 for an hour")
    return int(text)


def _seconds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 10**7:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds: write 3600 for an hour")
    return int(text)


def _size(text: str) -> int:
    try:
        return limits.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
        with _no_needless_folder(args):
            config, entry, arguments = config_from_args(args)
        if args.run_path:
            # Torch would spawn it from this process, which has threads and a watch to keep: a fresh one is as good.
            entry, arguments = sys.executable, ["-u", "-m", "rankscope.launch.run_path", *arguments]
    except (ValueError, AssertionError, RuntimeError, TypeError, OSError) as error:
        raise UsageError(said_by_torch(error, args)) from error
    if config.nproc_per_node < 1:
        raise UsageError("--nproc-per-node found no device to run on: give a number")
    return config, entry, arguments


@contextmanager
def _no_needless_folder(args: argparse.Namespace) -> Iterator[None]:
    """Torch would make a temporary one for logs that go to the run's folder."""
    given = args.log_dir
    if not given and args.logs_specs is None:
        args.log_dir = os.devnull
    try:
        yield
    finally:
        args.log_dir = given
