"""Kills, stops, continues and interrupts the processes of real jobs at random moments, and looks at what is left.

    python benchmarks/chaos.py --rounds 200 --jobs 2 --out chaos      one line of JSON a round in chaos/
    python benchmarks/chaos.py --table chaos other/chaos              the table of docs/reliability.md, of all of them

Each round starts a small job of two ranks with loader workers on one node, or of one rank on each of two, picks a
victim and a blow, waits a random moment, strikes and lets the job end by itself. Then it looks for what must never be:
a process that is left, a file or a socket outside of the run's folder, a folder in shared memory, evidence or a verdict
that cannot be read, an exit code that disagrees with the verdict, a rank that is blamed and was not struck, a command
that does not end within ten seconds of its job, a traceback of ours. Every fourth round has two nodes: network
namespaces where this user may make them, two launchers on one machine otherwise. The same seed gives the same rounds;
the moment within a round is as exact as the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from chaos_round import Round, play
from chaos_table import as_row, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from namespaces import why_not


def main() -> int:
    """The number of rounds in which something was wrong is told by the exit code: 0 for none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no round after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="so many at once")
    parser.add_argument("--only", type=int, help="this round alone, as numbered in the table")
    parser.add_argument("--out", type=Path, help="a folder for one line of JSON a round, and what was left of bad ones")
    parser.add_argument("--no-namespaces", action="store_true", help="two nodes are two launchers on this machine")
    parser.add_argument("--pause-while", type=Path, help="begin no round while this file is there")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these folders, and do nothing else")
    chosen = parser.parse_args()
    if chosen.table:
        print(table(chosen.table))
        return 0
    reason = "as told" if chosen.no_namespaces else why_not()
    print(f"two nodes: {'network namespaces' if reason is None else f'two launchers on one machine ({reason})'}")
    print("| round | nodes | victim | blow | after | codes | verdicts | took | faults |")
    print("| ---: | ---: | --- | --- | ---: | ---: | --- | ---: | --- |")
    # A job that a shell puts into the background ignores interruptions, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begun, bad = time.monotonic(), 0
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)

    def one(number: int) -> Round | None:
        while chosen.pause_while is not None and chosen.pause_while.exists():
            time.sleep(1.0)
        if time.monotonic() - begun > chosen.seconds:
            return None
        chance = random.Random(f"{chosen.seed}/{number}")
        done = play(number, chance, chosen.out, namespaces=reason is None)
        print(as_row(done), flush=True)
        if chosen.out is not None:
            with (chosen.out / f"rounds-{chosen.seed}-{os.getpid()}.jsonl").open("a") as file:
                file.write(json.dumps({"seed": chosen.seed, **asdict(done)}) + "\n")
        return done

    numbers = range(chosen.rounds) if chosen.only is None else [chosen.only]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for done in pool.map(one, numbers):
            bad += done is not None and bool(done.faults)
    return min(bad, 100)


if __name__ == "__main__":
    sys.exit(main())
