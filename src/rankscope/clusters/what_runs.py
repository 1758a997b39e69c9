"""The script of a command that runs elsewhere: which word it is, and whether it is here to be sent or shared."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from rankscope.errors import UsageError
from rankscope.given_paths import not_there


def script_of(command: Sequence[str]) -> str | None:
    """The first word that is a Python file; None for a module or a program."""
    before = command[: next((place for place, word in enumerate(command) if word.endswith(".py")), 0)]
    if any(word in ("-m", "--module", "--no-python", "--no_python") for word in before):
        return None
    return next((word for word in command if word.endswith(".py")), None)


def refuse_own_options(given: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Raises UsageError for an option of this command that stands behind the script, where no -- says that it is meant
    for the script: `--dry-run` there would start everything."""
    if given[:1] == ["--"]:
        return
    own = {name for name in parser._option_string_actions if name.startswith("--")}
    own -= {"--help", "--output", "--name", "--config", "--env"}  # these a script may well have
    misplaced = next((word for word in given if word.partition("=")[0] in own), None)
    if misplaced is not None:
        raise UsageError(
            f"{misplaced} stands behind the script and would go to it: write {parser.prog} {misplaced} ... -- "
            f"{next((word for word in given if word.endswith('.py')), 'train.py')}"
        )


def refuse_other_numbers(command: Sequence[str], *, nodes: int, gpus: int | None) -> None:
    """Raises UsageError where options of `rankscope run` ask for other machines than those that are asked for."""
    given = _number(command, "--nnodes")
    if given is not None and given != nodes:
        raise UsageError(f"--nodes {nodes} and --nnodes {given} contradict each other: leave --nnodes out")
    ranks = _number(command, "--nproc-per-node")
    if ranks is not None and gpus is not None and ranks > gpus:
        raise UsageError(f"--nproc-per-node {ranks}, and a node has {gpus} GPUs: each rank needs one; leave one out")


def _number(command: Sequence[str], option: str) -> int | None:
    """The value of an option before the script, where it is a number."""
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option:
            value = value if equals else next(iter(command[place + 1 : place + 2]), "")
            return int(value) if value.isdigit() else None
        if word.endswith(".py"):
            return None
    return None


def refuse_without_script(command: Sequence[str]) -> None:
    """Raises UsageError where options alone are given: they end with an option, or with its number."""
    if any(word.endswith(".py") or word in ("-m", "--module", "--no-python", "--no_python") for word in command):
        return
    if command and (command[-1].startswith("-") or command[-1].isdigit()):
        raise UsageError(
            f"there is no script to run: name it after the options, as in -- {shlex.join(command)} train.py"
        )


def refuse_missing_script(command: Sequence[str]) -> None:
    """Raises UsageError where the script is not in this folder, which the other machine shares or is sent."""
    refuse_without_script(command)
    script = script_of(command)
    # A whole path may be one of the machine that runs it.
    if script is not None and not Path(script).is_absolute() and not Path(script).is_file():
        raise UsageError(not_there(script, what="the script"))
