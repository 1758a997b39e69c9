"""What a rank of `rankscope run --run-path` is: a fresh interpreter that runs the script as torch's own `--run-path`
does, with `runpy`, and leaves the exception that ends it in TORCHELASTIC_ERROR_FILE."""

from __future__ import annotations

import runpy
import sys
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import record


def run_script(script: str, arguments: list[str]) -> Any:
    """As `__main__`, with the script's arguments on `sys.argv`."""
    sys.argv = [script, *arguments]
    return runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    record(run_script)(sys.argv[1], sys.argv[2:])
