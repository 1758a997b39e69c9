"""One rank that trains by one plan after another with the real loop. Arguments: PLAN PORT, again and again.

With HOLD_SAVE_OF=STEP in the environment, the checkpoint of that step is held just before it is complete, for ever.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter

from rankscope.train.loop import train
from rankscope.train.plan import read_plan
from rankscope.train.state import checkpointer
from rankscope.train.voice import Voice


class HeldWriter(FileSystemWriter):
    """Has written all tensors of the checkpoint, and never says that they are all."""

    def finish(self, *arguments: Any, **named: Any) -> None:
        if f"{int(os.environ['HOLD_SAVE_OF']):08d}" in str(self.path):
            print(f"held {self.path}", flush=True)
            threading.Event().wait()
        super().finish(*arguments, **named)


def main() -> int:
    if "HOLD_SAVE_OF" in os.environ:
        checkpointer.FileSystemWriter = HeldWriter  # type: ignore[attr-defined]
    given = sys.argv[1:]
    for plan, port in zip(given[::2], given[1::2], strict=True):
        os.environ["MASTER_PORT"] = port
        code = train(read_plan(Path(plan)), Voice(f"CPU {os.environ['RANK']}"))
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
