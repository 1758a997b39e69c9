"""The verbs of the command line. Nothing heavy is imported before a verb is known."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from rankscope import __version__
from rankscope.errors import RankscopeError, UsageError
from rankscope.mask import learn, mask_text
from rankscope.terminal_text import harmless

USAGE = """\
usage: rankscope VERB [arguments]

torchrun that tells you why: starts a multi-GPU PyTorch job nobody edited, and when it hangs or dies names the rank,
the line of your code, the cause and the fix.

verbs:
  run        start a job; takes every option of torchrun         rankscope run --nproc-per-node 4 train.py
  watch      start any command and watch the ranks in it         rankscope watch -- accelerate launch train.py
  attach     look at a job that hangs now, whoever started it    rankscope attach
  top        a board of a job that runs: who does what, how      rankscope top
             fast, and who waits for whom
  diagnose   say what happened, from a run's folder, dumps,      rankscope diagnose nccl_trace_rank_* train.log
             stacks or logs
  report     the same as a page to send, markdown or a trace     rankscope report runs/1115-021233-train
  train      train a language model as such a job                rankscope train --debug
  prepare    turn text into the dataset of a training run        rankscope prepare --debug
  check      is this machine fit to train?                       rankscope check
  gpus       the GPUs of this machine, and who uses them         rankscope gpus
  launch     start the same run on a cluster                     rankscope launch slurm --nodes 2 -- train.py

  rankscope VERB --help     options of a verb
  rankscope --version
"""


def _run(arguments: list[str]) -> int:
    from rankscope.launch.entry import run

    return run(arguments)


def _watch(arguments: list[str]) -> int:
    from rankscope.launch.entry import watch

    return watch(arguments)


def _diagnose(arguments: list[str]) -> int:
    from rankscope.report.again import diagnose_command

    return diagnose_command(arguments)


def _attach(arguments: list[str]) -> int:
    from rankscope.report.attach import attach_command

    return attach_command(arguments)


def _top(arguments: list[str]) -> int:
    from rankscope.report.top import top_command

    return top_command(arguments)


def _report(arguments: list[str]) -> int:
    from rankscope.report.report_command import report_command

    return report_command(arguments)


def _check(arguments: list[str]) -> int:
    from rankscope.checks.command import check_command

    return check_command(arguments)


def _gpus(arguments: list[str]) -> int:
    from rankscope.commands.gpus import gpus_command

    return gpus_command(arguments)


def _train(arguments: list[str]) -> int:
    from rankscope.train.command import train_command

    return train_command(arguments)


def _prepare(arguments: list[str]) -> int:
    from rankscope.train.data.command import prepare_command

    return prepare_command(arguments)


def _launch(arguments: list[str]) -> int:
    from rankscope.clusters.command import launch_command

    return launch_command(arguments)


VERBS: dict[str, Callable[[list[str]], int]] = {
    "run": _run,
    "watch": _watch,
    "attach": _attach,
    "top": _top,
    "diagnose": _diagnose,
    "report": _report,
    "check": _check,
    "gpus": _gpus,
    "train": _train,
    "prepare": _prepare,
    "launch": _launch,
}


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if given else 2
    if given[0] in ("-V", "--version"):
        print(f"rankscope {__version__}")
        return 0
    learn(given, os.environ)  # what they call a secret stays one, in whatever text it turns up later
    try:
        verb = VERBS.get(given[0])
        if verb is None:
            raise UsageError(f"no verb '{given[0]}'{_nearest(given[0])}; see 'rankscope --help'")
        return verb(given[1:])
    except RankscopeError as error:
        print(harmless(f"rankscope: {mask_text(str(error))}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("rankscope: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has had enough, as `head` does. Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _nearest(word: str) -> str:
    from rankscope.spelling import nearest

    return nearest(word, (*VERBS, "--help", "--version"))
