"""What a rank runs: `python -m rankscope.train.rank PLAN`. Started by `rankscope train`, or by hand under torchrun."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rankscope.errors import RankscopeError
from rankscope.process_status import gpu_number
from rankscope.train.plan import read_plan
from rankscope.train.voice import Voice


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m rankscope.train.rank PLAN.json  (see 'rankscope train --help')", file=sys.stderr)
        return 2
    plan = read_plan(Path(arguments[0]))
    voice = Voice(f"{plan.device_word} {_number(plan.device_word)}")
    voice.memory("START")
    try:
        from rankscope.train.loop import train

        voice.memory("POST-IMPORT")
        return train(plan, voice)
    except RankscopeError as error:
        # A user's mistake that only a rank can see. Every rank sees it; one line is enough.
        if os.environ.get("RANK", "0") == "0":
            print(f"rankscope: {error}", file=sys.stderr)
        return error.exit_code


def _number(device: str) -> int:
    local, ranks = os.environ.get("LOCAL_RANK", "0"), os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(local) if device != "GPU" else gpu_number(os.environ, int(local), int(ranks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
