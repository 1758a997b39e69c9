"""`--comm-debug`: what NCCL and torch.distributed have to say, NCCL's part in a file per rank."""

from __future__ import annotations

import os
from pathlib import Path

from rankscope.errors import UsageError
from rankscope.private_files import make_own_folder

FOLDER = "comm"
_SETTINGS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "ALL",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_CPP_LOG_LEVEL": "INFO",
}


def set_comm_debug(run_folder: Path) -> str:
    """Sets what the user has not; says what. NCCL's lines go to `comm/` in the run's folder."""
    folder = run_folder / FOLDER
    try:
        make_own_folder(folder)
    except OSError as error:
        raise UsageError(f"--comm-debug: '{folder}' cannot be made: {error.strerror}") from error
    wanted = {**_SETTINGS, "NCCL_DEBUG_FILE": str(folder.resolve() / "nccl-%h-%p.log")}
    chosen = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(chosen)
    told = " ".join(f"{name}={value}" for name, value in chosen.items())
    return f"--comm-debug: {told}" if told else "--comm-debug: everything it would set is set already"
