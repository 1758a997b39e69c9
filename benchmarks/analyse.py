"""How fast are many flight-recorder dumps analysed, and with how much memory?

    python benchmarks/analyse.py                          # 8, 64, 256 and 4,096 ranks, 2,000 calls each
    python benchmarks/analyse.py --ranks 8,64 --out results.json

Dumps in the bytes in which torch writes them are made in a temporary folder. One rank leaves out a call.
Three programs then run on the same folder, each a process of its own, its start included, and the best of several
turns counts. Memory is that of all processes of the command together, looked at 20 times a second.

  reading      one process: pickle.load of each file, entries as they are, dropped before the next; no cycle collection,
               which would double it
  rankscope    rankscope diagnose --json, with as many processes as there are cores
  torchfrtrace torch's own analyser, up to --most-for-torch ranks
"""

from __future__ import annotations

import argparse
import json
import os
import pickletools
import platform
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from torch_pickle import torch_pickle

SITE = "/opt/job/lib/python3.11/site-packages/torch"
SCRIPT = "/opt/job/train.py"
CALLS = 2000
BEGAN_NS = 1_794_722_970_000_000_000
FIRST_THREAD = 139_745_049_529_216
BUCKETS = 18
"""Gradient buckets a step; with the loss and a flag this makes the pattern of a small DDP job."""

READING = """
import gc, os, pickle, sys
gc.disable()
for name in sorted(os.listdir(sys.argv[1])):
    with open(os.path.join(sys.argv[1], name), "rb") as file:
        pickle.load(file)
"""
FR_TRACE = "from torch.distributed.flight_recorder.fr_trace import main; main()"


def frame(name: str, file: str, line: int) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


MODULE = [frame("main", SCRIPT, 120), frame("<module>", SCRIPT, 140)]
STEP = [frame("train_step", SCRIPT, 61), *MODULE]
WRAPPED = [
    frame("all_reduce", f"{SITE}/distributed/distributed_c10d.py", 3245),
    frame("wrapper", f"{SITE}/distributed/c10d_logger.py", 83),
]
BACKWARD = [
    frame("_engine_run_backward", f"{SITE}/autograd/graph.py", 869),
    frame("backward", f"{SITE}/autograd/__init__.py", 354),
    frame("backward", f"{SITE}/_tensor.py", 630),
    *STEP,
]
LOSS = [*WRAPPED, frame("reduce_loss", SCRIPT, 44), frame("log", SCRIPT, 72), *MODULE]
FLAG = [*WRAPPED, frame("should_stop", SCRIPT, 51), frame("log", SCRIPT, 75), *MODULE]


def calls_of(rank: int, odd: int) -> list[dict[str, Any]]:
    """The ring of one rank: the odd one leaves out the loss of the last step, and waits in the next call."""
    entries: list[dict[str, Any]] = []
    last_step = (CALLS - 3) // (BUCKETS + 2)
    for step in range(last_step + 1):
        shapes: list[tuple[list[int], list[dict[str, Any]]]] = [([25_000 + n, 64], BACKWARD) for n in range(BUCKETS)]
        if not (rank == odd and step == last_step):
            shapes.append(([1], LOSS))
        shapes.append(([2], FLAG))
        for shape, frames in shapes:
            if len(entries) == CALLS:
                break
            entries.append(entry(len(entries), shape, frames, rank))
    hanging = last_step * (BUCKETS + 2) + BUCKETS
    for late in entries[hanging:]:
        late.update(state="started", retired=False, time_discovered_completed_ns=None)
    del entries[hanging + 1 :]
    return entries


def entry(number: int, shape: list[int], frames: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    at = BEGAN_NS + number * 7_000_000 + rank * 1_000
    return {
        "frames": list(frames),
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "pt_main_thread",
        "thread_id": str(FIRST_THREAD + rank),
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": at,
        "input_sizes": [list(shape)],
        "input_dtypes": ["Float"],
        "output_sizes": [list(shape)],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": at + 1_000,
        "time_discovered_completed_ns": at + 900_000,
        "duration_ms": 0.9,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def write_dumps(folder: Path, ranks: int, odd: int) -> int:
    """Returns the bytes written. Ranks differ in their times and threads; these are put into one dump for all."""
    usual, other = Template(dump_of(-1, odd, ranks)), Template(dump_of(odd, odd, ranks))
    total = 0
    for rank in range(ranks):
        data = (other if rank == odd else usual).of(rank)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
        total += len(data)
    return total


def dump_of(rank: int, odd: int, ranks: int) -> dict[str, Any]:
    entries = calls_of(rank, odd)
    newest = entries[-1]["collective_seq_id"]
    status = {
        "last_enqueued_collective": newest,
        "last_started_collective": newest,
        "last_completed_collective": newest - 1,
    }
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
        "comm_lib_version": "2.28.9",
        "pg_status": {"0": status},
        "entries": entries,
    }


class Template:
    """One dump in torch's bytes, and where in them the times and the thread stand."""

    def __init__(self, dump: dict[str, Any]) -> None:
        self._data = torch_pickle(dump)
        shift = (dump["entries"][0]["time_created_ns"] - BEGAN_NS) * -1
        self._times: list[tuple[int, int]] = []
        self._thread = 0
        for opcode, value, at in pickletools.genops(self._data):
            if opcode.name == "LONG1" and at is not None and value is not None:
                self._times.append((at + 2, value + shift))
            elif value == dump["entries"][0]["thread_id"] and at is not None:
                self._thread = at + 5

    def of(self, rank: int) -> bytes:
        data = bytearray(self._data)
        for at, value in self._times:
            struct.pack_into("<q", data, at, value + rank * 1_000)
        thread = str(FIRST_THREAD + rank).encode()
        data[self._thread : self._thread + len(thread)] = thread
        return bytes(data)


def measure(command: list[str], turns: int) -> dict[str, Any]:
    """The best times of several turns, the largest memory of all its processes together, and the last output."""
    # Python's compiled modules are kept, as they are after an installation.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    best = cpu = float("inf")
    memory = 0
    # A child of a child: the processor time of exactly this command, its own children included.
    runner = "import json,resource,subprocess,sys; r=subprocess.run(sys.argv[1:], stdout=subprocess.PIPE); "
    runner += "u=resource.getrusage(resource.RUSAGE_CHILDREN); "
    runner += "print(json.dumps([u.ru_utime + u.ru_stime, r.returncode])); "
    runner += "sys.stdout.flush(); sys.stdout.buffer.write(r.stdout)"
    for _ in range(turns):
        begun = time.perf_counter()
        started = subprocess.Popen(
            [sys.executable, "-c", runner, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        peak = MemoryOf(started.pid)
        out, errors = started.communicate()
        best = min(best, time.perf_counter() - begun)
        memory = max(memory, peak.end())
        if started.returncode != 0:
            raise RuntimeError(errors)
        head, _, output = out.partition("\n")
        used, code = json.loads(head)
        cpu = min(cpu, used)
    return {
        "seconds": round(best, 2),
        "cpu_seconds": round(cpu, 2),
        "peak_mb": round(memory / 2**20),
        "exit_code": code,
        "output": output,
    }


class MemoryOf:
    """Looks at what all processes below one hold together; pages that they share count once."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def end(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._peak

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            self._peak = max(self._peak, sum(map(proportional_memory, descendants(self._pid))))


def descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return children + [below for child in children for below in descendants(child)]


def proportional_memory(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0  # gone meanwhile
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)


def one_size(ranks: int, turns: int, with_torch: bool) -> dict[str, Any]:
    odd = ranks // 3
    folder = Path(tempfile.mkdtemp(prefix="rankscope-analyse-"))
    try:
        size = write_dumps(folder, ranks, odd)
        result: dict[str, Any] = {"ranks": ranks, "calls": CALLS, "megabytes": round(size / 2**20)}
        reading = measure([sys.executable, "-c", READING, str(folder)], turns)
        ours = measure([sys.executable, "-m", "rankscope", "diagnose", "--json", str(folder)], turns)
        verdict = json.loads(ours.pop("output"))
        culprits = verdict["culprits"]
        result["reading"] = {key: reading[key] for key in ("seconds", "cpu_seconds", "peak_mb")}
        result["rankscope"] = {
            **ours,
            "cause": verdict["cause"],
            "culprits": [culprit["rank"] for culprit in culprits],
            "line": culprits[0]["where"]["line"] if culprits and culprits[0]["where"] else None,
            "right": [culprit["rank"] for culprit in culprits] == [odd],
        }
        result["rankscope / reading"] = round(ours["seconds"] / reading["seconds"], 2)
        result["rankscope / reading, processor time"] = round(ours["cpu_seconds"] / reading["cpu_seconds"], 2)
        if with_torch:
            theirs = measure([sys.executable, "-c", FR_TRACE, "--prefix", "nccl_trace_rank_", str(folder)], turns)
            theirs.pop("output")
            result["torchfrtrace"] = theirs
            result["torchfrtrace / rankscope"] = round(theirs["seconds"] / ours["seconds"], 1)
        return result
    finally:
        shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,64,256,4096", help="sizes of the job (default %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="the best of so many counts (default %(default)s)")
    parser.add_argument("--most-for-torch", type=int, default=256, help="largest job given to torchfrtrace")
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    chosen = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    results = []
    for ranks in map(int, chosen.ranks.split(",")):
        turns = chosen.turns if ranks <= 256 else 1
        result = one_size(ranks, turns, ranks <= chosen.most_for_torch)
        results.append(result)
        print(json.dumps(result), flush=True)
    about = {
        "rankscope": metadata.version("rankscope"),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "cores": len(os.sched_getaffinity(0)),
        "results": results,
    }
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
