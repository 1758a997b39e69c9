"""Kills, stops, continues and interrupts the processes of real jobs at random moments, and looks at what is left.

    python benchmarks/chaos.py --rounds 200 --jobs 2 --out chaos.jsonl        adds one line of JSON a round
    python benchmarks/chaos.py --table chaos.jsonl others.jsonl --since v2    the table of docs/reliability.md

Rounds of several runs add up in one file. Each line names the commit that was run; `--since` counts the rounds of
that commit and of those that came after it, and no others.

Each round starts a small job of two ranks with loader workers on one node, or of one rank on each of two, picks a
victim and a blow, waits a random moment, strikes and lets the job end by itself. Then it looks for what must never be:
a process that is left, a file or a socket outside of the run's folder, a folder in shared memory, evidence or a verdict
that cannot be read, an exit code that disagrees with the verdict, a rank that is blamed and was not struck, a command
that does not end within ten seconds of its job, a traceback of ours. Rounds that are played at the same time have
folders, ports and marks of their own, and answer for what is theirs. Every fourth round has two nodes: network
namespaces where this user may make them, two launchers on one machine otherwise. The same seed gives the same rounds;
the moment within a round is as exact as the machine.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos_round import LATEST_S, Round, play
from chaos_table import as_line, as_row, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from namespaces import why_not


def main() -> int:
    """The number of rounds in which something was wrong is told by the exit code: 0 for none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no round after so long")
    parser.add_argument("--seed", type=int, help="by default another one every time")
    parser.add_argument("--jobs", type=int, default=1, help="so many at once")
    parser.add_argument("--only", type=int, help="this round alone, as numbered in the table")
    parser.add_argument("--out", type=Path, help="adds a line of JSON a round to this file")
    parser.add_argument("--keep", type=Path, help="a folder for what was left of bad rounds")
    parser.add_argument("--no-namespaces", action="store_true", help="two nodes are two launchers on this machine")
    parser.add_argument("--pause-while", type=Path, help="begin no round while this file is there")
    parser.add_argument("--commit", help="of the source, where this is a copy without its history")
    parser.add_argument("--start-s", type=float, default=LATEST_S["start"], help="what a job takes to start, about")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these files, and do nothing else")
    parser.add_argument("--since", help="with --table: rounds of this commit and later ones")
    chosen = parser.parse_args()
    if chosen.table:
        print(table(chosen.table, chosen.since))
        return 0
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    source = chosen.commit or commit()
    LATEST_S["start"] = chosen.start_s
    reason = "as told" if chosen.no_namespaces else why_not()
    print(f"two nodes: {'network namespaces' if reason is None else f'two launchers on one machine ({reason})'}")
    print(f"seed {seed}, commit {source}")
    print("| round | nodes | job | victim | blow | after | codes | verdicts | took | faults |")
    print("| ---: | ---: | --- | --- | --- | ---: | ---: | --- | ---: | --- |")
    # A job that a shell puts into the background ignores interruptions, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = time.monotonic()
    begun_at = used_s()

    def one(number: int) -> Round | None:
        while chosen.pause_while is not None and chosen.pause_while.exists():
            time.sleep(1.0)
        if time.monotonic() - begun > chosen.seconds:
            return None
        chance = random.Random(f"{seed}/{number}")
        try:
            done = play(number, chance, chosen.keep, namespaces=reason is None)
        except Exception as error:  # noqa: BLE001  one round that cannot be played must not end all others
            done = Round(number, 0, "-", "-", faults=[f"not played: {type(error).__name__}: {error}"])
        print(as_row(done), flush=True)
        if chosen.out is not None:
            with chosen.out.open("a") as file:
                file.write(as_line(done, seed, source))
        return done

    numbers = range(chosen.rounds) if chosen.only is None else [chosen.only]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        played = [done for done in pool.map(one, numbers) if done is not None]
    if played:
        each_s = (used_s() - begun_at) / len(played)
        print(f"{len(played)} rounds, {each_s:.1f} s of processor time and {waited_s(played):.1f} s of waiting each")
    return min(sum(bool(done.faults) for done in played), 100)


def used_s() -> float:
    """Processor time of all that was started and has ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def waited_s(played: list[Round]) -> float:
    return sum(done.seconds for done in played) / len(played)


def commit() -> str:
    """Of the source; with a mark where it was changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    if shutil.which("git") is None:
        return "unknown"
    head = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "../src"], capture_output=True, check=False)
    return (head.stdout.strip() or "unknown") + ("+" if changed.returncode else "")


if __name__ == "__main__":
    sys.exit(main())
