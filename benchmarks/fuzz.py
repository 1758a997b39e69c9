"""Feeds every reader of other people's files with spoiled copies of real ones, for as long as you like.

    python benchmarks/fuzz.py --seconds 600 --seed 1

Each input is a recorded or made file with bytes flipped, cut, doubled, or swapped with those of another file. A reader
may refuse it; a traceback, or more than ten seconds for one input, is a fault. The input of a fault is kept, and its
place is printed.
"""

from __future__ import annotations

import argparse
import pickle
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from rankscope.errors import RankscopeError
from rankscope.evidence.nan_dump import is_nan_dump, read_nan_dump
from rankscope.evidence.readers.gather import gather
from rankscope.report.conclude import conclude

SLOW_S = 10.0
NAMES = ("nccl_trace_rank_0", "rank1.log", "error.json", "evidence.json", "stacks.txt", "verdict.json")


def spoil(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """A few of the ways in which files are broken, by accident or not."""
    spoiled = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(spoiled) + 1)
        match chance.randrange(6):
            case 0 if spoiled:
                spoiled[at % len(spoiled)] = chance.randrange(256)
            case 1:
                del spoiled[at : at + chance.randint(1, 64)]
            case 2:
                spoiled[at:at] = spoiled[at : at + chance.randint(1, 256)] * chance.randint(1, 40)
            case 3:
                begin = chance.randrange(len(other) + 1)
                spoiled[at : at + 16] = other[begin : begin + chance.randint(1, 64)]
            case 4:
                spoiled[at:at] = chance.choice([b"9" * 5000, b"[" * 3000, b"\0" * 50, b"\xff\xfe", b"-1", b"1e999"])
            case _:
                del spoiled[at:]
    return bytes(spoiled)


def seeds() -> list[bytes]:
    """Files to begin with: made dumps, logs, stacks and error files."""
    call = {
        "frames": [{"name": "f", "filename": "train.py", "line": 3}],
        "record_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 1, "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 10**18, "input_sizes": [[4]], "output_sizes": [[4]],
        "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "scheduled", "retired": False,
        "timeout_ms": 600000, "is_p2p": False, "time_discovered_completed_ns": None,
    }  # fmt: skip
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    status = {"0": {"last_enqueued_collective": 3, "last_completed_collective": 2}}
    calls = [{**call, "record_id": n, "collective_seq_id": n} for n in range(12)]
    dump = {"version": "2.10", "pg_config": groups, "pg_status": status, "entries": calls}
    log = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/home/me/train.py", line 88, in <module>\n[rank1]:     main()\n[rank1]: ValueError: no\n'
        "[rank0]:[E1116 02:12:01.123 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=418, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600043 ms\n"
        "E1116 02:12:09 torch/distributed/elastic: failed (exitcode: -9) local_rank: 1 (pid: 4121) of binary: python\n"
    )
    stacks = (
        'Process 41: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 41 (idle): "MainThread"\n'
        "    wait (threading.py:320)\n    main (train.py:7)\n"
    )
    error = '{"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1"}}}'
    recorded = Path(__file__).resolve().parents[1] / "zoo" / "recorded"
    evidence = [path.read_bytes() for path in sorted(recorded.rglob("evidence.json"))[:3]]
    return [pickle.dumps(dump, protocol=2), log.encode(), stacks.encode(), error.encode(), *evidence]


def main() -> int:
    """Exit code 1 where a fault was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    chance, files = random.Random(chosen.seed), seeds()
    begun = time.monotonic()
    tried, faults, slowest = 0, 0, 0.0
    with tempfile.TemporaryDirectory(prefix="rankscope-fuzz-") as folder:
        while time.monotonic() - begun < chosen.seconds:
            path = Path(folder) / chance.choice(NAMES)
            path.write_bytes(spoil(chance.choice(files), chance.choice(files), chance))
            tried += 1
            at = time.monotonic()
            fault = read(path)
            took = time.monotonic() - at
            slowest = max(slowest, took)
            if fault is None and took > SLOW_S:
                fault = f"took {took:.1f} s"
            if fault is not None:
                faults += 1
                kept = Path(tempfile.gettempdir()) / f"rankscope-fuzz-fault-{chosen.seed}-{tried}-{path.name}"
                kept.write_bytes(path.read_bytes())
                print(f"{kept}\n{fault}", flush=True)
            path.unlink()
    print(f"{tried} files, {faults} faults, the slowest took {slowest:.2f} s")
    return int(faults > 0)


def read(path: Path) -> str | None:
    """The traceback, where there is one that no user should see."""
    try:
        if is_nan_dump(path):
            conclude(read_nan_dump(path))
        conclude(gather([str(path)]))
    except RankscopeError:
        return None
    except Exception:  # noqa: BLE001  that is what is looked for
        return traceback.format_exc()
    return None


if __name__ == "__main__":
    sys.exit(main())
