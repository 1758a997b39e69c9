"""The script of a command that runs elsewhere: which word it is, and whether it is here to be sent or shared."""

from __future__ import annotations

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


def refuse_missing_script(command: Sequence[str]) -> None:
    """Raises UsageError where the script is not in this folder, which the other machine shares or is sent."""
    script = script_of(command)
    # A whole path may be one of the machine that runs it.
    if script is not None and not Path(script).is_absolute() and not Path(script).is_file():
        raise UsageError(not_there(script, what="the script"))
