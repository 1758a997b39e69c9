"""torchrun, except that before it ends ranks it asks them for their dumps (the request `end`) and waits for these."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

WAIT_S = 5.0


def _collect_first(folder: Path) -> None:
    close = SubprocessContext._close

    def dump_and_close(self: SubprocessContext, *args: Any, **kwargs: Any) -> None:
        alive = {rank for rank, handler in self.subprocess_handlers.items() if handler.proc.poll() is None}
        (folder / "request_end").touch()
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and not all((folder / "end" / f"rank_{rank}").exists() for rank in alive):
            time.sleep(0.05)
        close(self, *args, **kwargs)

    SubprocessContext._close = dump_and_close  # type: ignore[method-assign]


if __name__ == "__main__":
    _collect_first(Path(os.environ["FLIGHT_DUMPS"]))
    sys.exit(run.main())
