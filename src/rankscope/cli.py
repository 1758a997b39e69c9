"""The verbs of the command line. Nothing heavy is imported before a verb is known."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from rankscope import __version__
from rankscope.errors import RankscopeError, UsageError
from rankscope.mask import learn, mask_text
from rankscope.streams import OutputLost, finish_output, give_up_output
from rankscope.terminal_text import harmless
from rankscope.verbs import Verb, brought_verbs, load_verb

HEAD = """\
usage: rankscope VERB [arguments]

torchrun that tells you why: starts a multi-GPU PyTorch job nobody edited, and when it hangs or dies names the rank,
the line of your code, the cause and the fix.

verbs:
"""
FOOT = """
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


def _launch(arguments: list[str]) -> int:
    from rankscope.clusters.command import launch_command

    return launch_command(arguments)


VERBS: dict[str, Verb] = {
    "run": Verb(
        "start a job; takes every option of torchrun",
        "rankscope run --nproc-per-node 4 train.py",
        _run,
    ),
    "watch": Verb(
        "start any command and watch the ranks in it",
        "rankscope watch -- accelerate launch train.py",
        _watch,
    ),
    "attach": Verb(
        "look at a job that hangs now, whoever started it",
        "rankscope attach",
        _attach,
    ),
    "top": Verb(
        "a board of a job that runs: who does what, how\nfast, and who waits for whom",
        "rankscope top",
        _top,
    ),
    "diagnose": Verb(
        "say what happened, from a run's folder, dumps,\nstacks or logs",
        "rankscope diagnose nccl_trace_rank_* train.log",
        _diagnose,
    ),
    "report": Verb(
        "the same as a page to send, markdown or a trace",
        "rankscope report runs/1115-021233-train",
        _report,
    ),
    "check": Verb("is this machine fit to train?", "rankscope check", _check),
    "gpus": Verb("the GPUs of this machine, and who uses them", "rankscope gpus", _gpus),
    "launch": Verb(
        "start the same run on a cluster",
        "rankscope launch slurm --nodes 2 -- train.py",
        _launch,
    ),
}
"""Those of the core. Packages bring others, as the training system does: verbs.py."""


def usage() -> str:
    """Every verb, also those of packages; one that cannot be loaded says why in its place."""
    rows = [row for name, verb in VERBS.items() for row in _rows(name, verb)]
    for name, entry in brought_verbs().items():
        if name in VERBS:
            continue
        try:
            rows += _rows(name, load_verb(entry))
        except UsageError as error:
            rows.append(f"  {name:<10} {error}")
    return f"{HEAD}{harmless(chr(10).join(rows))}\n{FOOT}"


def _rows(name: str, verb: Verb) -> list[str]:
    first, *rest = verb.does.splitlines()
    return [f"  {name:<10} {first:<51} {verb.example}", *(f"  {'':<10} {line}" for line in rest)]


def find_verb(name: str) -> Verb:
    """The core's own verb of that name, else a package's."""
    if name in VERBS:
        return VERBS[name]
    brought = brought_verbs()
    if name in brought:
        return load_verb(brought[name])
    raise UsageError(f"no verb '{name}'{_nearest(name, brought)}; see 'rankscope --help'")


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            return _obey(given)
        finally:
            finish_output()  # not at exit, where nobody is left to say that it failed
    except BrokenPipeError:
        give_up_output()  # whoever read the output has had enough, as `head` does
        return 141
    except OutputLost as error:
        give_up_output()
        print(f"rankscope: the output cannot be written: {error.strerror}", file=sys.stderr)
        return os.EX_IOERR


def _obey(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0 if given else 2
    if given[0] in ("-V", "--version"):
        print(f"rankscope {__version__}")
        return 0
    learn(given, os.environ)  # what they call a secret stays one, in whatever text it turns up later
    try:
        return find_verb(given[0]).command(given[1:])
    except RankscopeError as error:
        print(harmless(f"rankscope: {mask_text(str(error))}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("rankscope: interrupted", file=sys.stderr)
        return 130


def _nearest(word: str, brought: Iterable[str]) -> str:
    from rankscope.spelling import nearest

    return nearest(word, (*VERBS, *brought, "--help", "--version"))
