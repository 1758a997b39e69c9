"""How the set-up of a process group fails: one line, and an exit code of its own for each phase."""

from __future__ import annotations

from rankscope.errors import RankscopeError


class SetupFailed(RankscopeError, SystemExit):
    """Caught like any other error; not caught, it ends the program with `exit_code` and no second traceback."""

    exit_code = 80
    phase = "set-up"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = self.exit_code


class BadEnvironment(SetupFailed):
    """A variable is missing, or cannot be what it says; nothing was started."""

    exit_code = 80
    phase = "environment"


class BadDevice(SetupFailed):
    """The rank's GPU cannot be used."""

    exit_code = 81
    phase = "device"


class NoRendezvous(SetupFailed):
    """The ranks did not find each other."""

    exit_code = 82
    phase = "rendezvous"


class NoGroup(SetupFailed):
    """init_process_group failed with the backend that all ranks agreed on."""

    exit_code = 83
    phase = "process group"


class NoProof(SetupFailed):
    """The group exists, and its first collective failed or gave a wrong sum."""

    exit_code = 84
    phase = "first collective"
