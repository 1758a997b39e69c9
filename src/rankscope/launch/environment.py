"""The environment that the ranks are started with: the probe on their path, the recorder switched on."""

from __future__ import annotations

import os
from pathlib import Path

from rankscope.probe.bootstrap import FOLDER_VARIABLE, LAUNCHER_VARIABLE

SITE = Path(__file__).resolve().parent.parent / "probe" / "site"
RECORDER_ENTRIES = "2000"


def prepare_environment(pages: Path | None) -> list[str]:
    """Changes this process's environment, which the ranks inherit. Returns what a person should know of it."""
    told = []
    os.environ[LAUNCHER_VARIABLE] = str(os.getpid())
    # A rank that is itself a launcher starts afresh.
    os.environ.pop(FOLDER_VARIABLE, None)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(SITE)]
    if pages is not None:
        os.environ[FOLDER_VARIABLE] = str(pages)
        os.environ["RANKSCOPE_PROBE_ERRORS"] = str(probe_error_file(pages))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *paths])
    if not {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"} & set(os.environ):
        os.environ["TORCH_FR_BUFFER_SIZE"] = RECORDER_ENTRIES
    elif os.environ.get("TORCH_FR_BUFFER_SIZE") == "0":
        told.append("TORCH_FR_BUFFER_SIZE=0 switches torch's flight recorder off; verdicts rest on less evidence")
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        told.append("TORCH_DISTRIBUTED_DEBUG=DETAIL adds collectives of its own; verdicts name them less exactly")
    return told


def probe_error_file(pages: Path) -> Path:
    """Where a process says that the probe did not start in it."""
    return pages / "errors"


def limit_threads(processes: int) -> str | None:
    """What torchrun does too, said in one line: one OpenMP thread per rank unless the user chose."""
    if "OMP_NUM_THREADS" in os.environ or processes <= 1:
        return None
    os.environ["OMP_NUM_THREADS"] = "1"
    return "OMP_NUM_THREADS=1 for each rank, as torchrun does; set it yourself to change that"
