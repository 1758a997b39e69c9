"""`--comm-timeout`, and `--comm-debug`: what NCCL and torch.distributed have to say, NCCL's part in a file per rank."""

from __future__ import annotations

import os
from pathlib import Path

from rankscope.errors import UsageError
from rankscope.held_folders import inside_for_children
from rankscope.private_files import make_own_folder
from rankscope.probe import comm_timeout

FOLDER = "comm"
_SETTINGS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "ALL",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_CPP_LOG_LEVEL": "INFO",
    # Only so the recorder tells a collective that the GPU stands in from one that it has not come to.
    "TORCH_NCCL_ENABLE_TIMING": "1",
}


TIMEOUTS = ("NCCL_TIMEOUT", "NCCL_TIMEOUT_SECONDS")


def set_comm_timeout(wanted_s: int | None, *, probe: bool) -> str | None:
    """Tells the ranks which timeout groups have where the program gives none; says so."""
    os.environ.pop(comm_timeout.VARIABLE, None)
    said = "--comm-timeout"
    if wanted_s is None:
        name = next((name for name in TIMEOUTS if os.environ.get(name)), None)
        if name is None:
            return None
        if not os.environ[name].isdigit() or int(os.environ[name]) < 1:
            raise UsageError(f"{name}={os.environ[name]} is no number of seconds: write {name}=3600 for an hour")
        wanted_s, said = int(os.environ[name]), f"{name}, which NCCL itself does not know"
    if not probe:
        raise UsageError("--comm-timeout is set by the probe inside each rank: leave --no-probe out")
    os.environ[comm_timeout.VARIABLE] = str(wanted_s)
    return f"collectives are given {wanted_s} s ({said}), unless the program says otherwise"


def set_comm_debug(run_folder: Path) -> str:
    """Sets what the user has not; says what. NCCL's lines and its graph go to `comm/` in the run's folder."""
    folder = run_folder / FOLDER
    try:
        make_own_folder(folder)
    except OSError as error:
        raise UsageError(f"--comm-debug: '{folder}' cannot be made: {error.strerror}") from error
    told_ranks = inside_for_children(folder.absolute())
    wanted = {
        **_SETTINGS,
        "NCCL_DEBUG_FILE": str(told_ranks / "nccl-%h-%p.log"),
        "NCCL_GRAPH_DUMP_FILE": str(told_ranks / "nccl-graph.xml"),  # written by NCCL's rank 0 alone
    }
    chosen = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(chosen)
    told = " ".join(f"{name}={value}" for name, value in chosen.items())
    return f"--comm-debug: {told}" if told else "--comm-debug: everything it would set is set already"
