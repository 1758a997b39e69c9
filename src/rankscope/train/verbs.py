"""The verbs that the training system adds to the command line; pyproject.toml names them as entry points."""

from __future__ import annotations

from collections.abc import Callable

from rankscope.errors import UsageError
from rankscope.verbs import Verb

EXTRA = ("numpy", "pyarrow", "safetensors", "tokenizers", "tomli", "yaml")
"""Modules of the packages in the extra `train`. What needs one says so itself, where it can say more than this."""


def _train(arguments: list[str]) -> int:
    def command() -> int:
        from rankscope.train.command import train_command

        return train_command(arguments)

    return told_what_to_install("train", command)


def _prepare(arguments: list[str]) -> int:
    def command() -> int:
        from rankscope.train.data.command import prepare_command

        return prepare_command(arguments)

    return told_what_to_install("prepare", command)


def told_what_to_install(verb: str, command: Callable[[], int]) -> int:
    """A package of the extra that is not there is one line, not a traceback."""
    try:
        return command()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA:
            raise
        raise UsageError(
            f"'rankscope {verb}' needs the package {missing}, which is not installed: pip install 'rankscope[train]'"
        ) from error


TRAIN = Verb("train a language model as such a job", "rankscope train --debug", _train)
PREPARE = Verb("turn text into the dataset of a training run", "rankscope prepare --debug", _prepare)
