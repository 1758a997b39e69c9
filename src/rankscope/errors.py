"""The exceptions that people see. Each becomes one line on the terminal and an exit code, never a traceback."""

from __future__ import annotations


class RankscopeError(Exception):
    """Base of them all; `exit_code` is what the command ends with."""

    exit_code = 1


class UsageError(RankscopeError):
    """A mistake in the command or the configuration: says what is wrong and what to write instead."""

    exit_code = 2


class MissingTorch(UsageError):
    """The command needs torch and this interpreter has none."""

    def __init__(self, verb: str) -> None:
        super().__init__(
            f"'rankscope {verb}' needs PyTorch 2.9 or later, and this Python has none. "
            "Install it (pip install torch), or run rankscope from the environment that has it."
        )


class EvidenceError(RankscopeError):
    """Evidence that cannot be read or written; names the file."""


class CheckFailedBeforehand(RankscopeError):
    """A check that the user wanted before the start has failed; the job was not started."""

    def __init__(self, steps: list[str]) -> None:
        super().__init__(f"the job was not started: {' and '.join(steps)} failed (see 'rankscope check')")


class CheckpointNotSaved(RankscopeError):
    """The last checkpoint of a run could not be written; the one before it is still there."""

    exit_code = 74


class DataError(UsageError):
    """Training data or a tokenizer that cannot be used as it is; names the file and the place in it."""


class DamagedDataset(RankscopeError):
    """A prepared dataset whose files are not what was written; `rankscope prepare` builds it again."""


class NoRoom(RankscopeError):
    """A full disk, or one that fails: nothing that looks complete was left behind, and nothing older was touched."""

    exit_code = 74
