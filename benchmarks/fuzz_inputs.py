"""Real inputs of every reader, and ways to spoil them."""

from __future__ import annotations

import json
import lzma
import pickle
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
NAMES = ("nccl_trace_rank_0", "rank1.log", "error.json", "evidence.json", "stacks.txt", "verdict.json")
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, -(2**63), 2**64, 10**30, 65_537, 2**53 + 1, 3_000_000_000, 1e308, -0.0, 1e-320,
    "", "0", "-1", "\x00", "\x1b]0;x\x07", "9" * 400, "a" * 3000, "\u202e", "[0, 1", "[0, 1]", "nccl:all_reduce", "NaN",
    "../../etc", "rank", "\ud83d\ude00", "completed", "default_pg",
    [], {}, [[]], [None], {"": None}, [0] * 300, [1, "a"],
)  # fmt: skip
LUMPS = (
    b"9" * 5000,
    b"[" * 3000,
    b"\0" * 50,
    b"\xff\xfe",
    b"-1",
    b"1e999",
    b"\r",
    b"\x1b[31m",
    b"\n\n",
    b"{",
    b"\x80\x04",
)


def spoil(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """A few of the ways in which files are broken, by accident or not."""
    spoiled = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(spoiled) + 1)
        match chance.randrange(7):
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
                spoiled[at:at] = chance.choice(LUMPS)
            case 5 if b"\n" in data:
                lines = bytes(spoiled).split(b"\n")
                lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
                lines.pop(chance.randrange(len(lines)))
                spoiled = bytearray(b"\n".join(lines))
            case 6 if chance.randrange(3) == 0:
                del spoiled[at:]
            case _ if spoiled:
                spoiled[at % len(spoiled)] ^= 1 << chance.randrange(8)
            case _:
                pass
    return bytes(spoiled)


def warp(value: Any, chance: random.Random) -> Any:
    """The document with one to three values replaced, dropped, doubled or moved; the original stays as it was."""
    for _ in range(chance.randint(1, 3)):
        value = _warped(value, chance)
    return value


def _warped(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.93:
        key = chance.choice(list(value))
        act = chance.random()
        if act < 0.06:
            return {name: each for name, each in value.items() if name != key}
        if act < 0.1:
            return {**value, key: value[chance.choice(list(value))]}
        return {**value, key: _warped(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.93:
        at = chance.randrange(len(value))
        act = chance.random()
        if act < 0.06:
            return [*value[:at], *value[at + 1 :]]
        if act < 0.12:
            return [*value, value[at]]
        return [*value[:at], _warped(value[at], chance), *value[at + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.4:
        return chance.choice([value + 1, value - 1, -value, value * 2, value * 10**6])
    if isinstance(value, str) and value and chance.random() < 0.3:
        at = chance.randrange(len(value))
        return value[:at] + chance.choice(["", "\n", "\x1b", "%s", "'", "(", "0", "\u2028"]) + value[at + 1 :]
    if chance.random() < 0.75:  # of its own kind: it gets past whoever looks at types alone
        alike = [odd for odd in ODD if type(odd) is type(value)]
        if alike:
            return chance.choice(alike)
    return chance.choice(ODD)


def spoiled_or_warped(
    documents: list[Any], encode: Callable[[Any], bytes], chance: random.Random, bytes_share: float = 0.35
) -> bytes:
    document = chance.choice(documents)
    if chance.random() < bytes_share:
        return spoil(encode(document), encode(chance.choice(documents)), chance)
    return encode(warp(document, chance))


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()


def as_pickle(document: Any) -> bytes:
    return pickle.dumps(document, protocol=2)


@cache
def dumps() -> list[Any]:
    """Flight-recorder dumps as values."""
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
    whole = {"version": "2.10", "pg_config": groups, "pg_status": status, "entries": calls}
    sent = {**call, "profiling_name": "nccl:send 0->1", "is_p2p": True, "p2p_seq_id": 4, "state": "started"}
    return [whole, {**whole, "entries": [call, sent]}, {**whole, "entries": calls[:2], "nccl_comm_state": {}}]


@cache
def texts() -> list[bytes]:
    """Logs, tracebacks, stacks, messages of the kernel."""
    log = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/home/me/train.py", line 88, in <module>\n[rank1]:     main()\n[rank1]: ValueError: no\n'
        "[rank0]:[E1116 02:12:01.123 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=418, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600043 ms\n"
        "E1116 02:12:09 torch/distributed/elastic: failed (exitcode: -9) local_rank: 1 (pid: 4121) of binary: python\n"
        "  time      : 2026-11-16_02:12:09\n  host      : node-1\n  rank      : 3 (local_rank: 1)\n"
        "  exitcode  : -11 (pid: 4122)\n  traceback : Signal 11 (SIGSEGV) received by PID 4122\n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.\n"
    )
    lightning = (
        "GPU available: True\n0: step 3 loss 2.1\n1: step 3 loss 2.2\nR1: RuntimeError: CUDA out of memory. Tried to "
        "allocate 2.00 GiB\n--api-key=sk-abcdefghijklmnop password: hunter2 https://me:secret@host/x\n"
        "During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n    g()\n    ~^^\n  + Exception Group Traceback (most recent call last):\n'
        "  | ExceptionGroup: two (2 sub-exceptions)\n  +-+---------------- 1 ----------------\nKeyError: 'x'\n"
    )
    fatal = (
        'Fatal Python error: Segmentation fault\n\nThread 0x00007f11 (most recent call first):\n  File "a.py", line 3 '
        'in f\n\nCurrent thread 0x00007f22 (most recent call first):\n  File "b.py", line 9 in <module>\n\n'
        "Extension modules: numpy.core (total: 1)\n"
    )
    stacks = (
        'Process 41: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 41 (idle): "MainThread"\n'
        "    wait (threading.py:320)\n        Arguments:\n            rank: 3\n    main (train.py:7)\n"
        'Thread 0x7F2 (active+gil): "worker"\n    read (io.c)\n'
    )
    kernel = (
        "6,1,100000,-;eth0: up\n3,2,999999999,-;Out of memory: Killed process 4121 (python)\n SUBSYSTEM=x\n"
        "4,3,1e9,-;NVRM: Xid (PCI:0000:17:00): 79, pid=4121, GPU has fallen off the bus.\n"
    )
    return [each.encode() for each in (log, lightning, fatal, stacks, kernel)]


@cache
def stacks() -> list[Any]:
    """Of py-spy, as JSON."""
    frame = {
        "name": "wait",
        "filename": "/usr/lib/python3.11/threading.py",
        "module": None,
        "short_filename": "threading.py",
    }
    inner = {**frame, "line": 320, "locals": [{"name": "rank", "repr": "3", "arg": True}], "is_entry": False}
    thread = {
        "pid": 41,
        "thread_id": 140,
        "thread_name": "MainThread",
        "os_thread_id": 41,
        "active": False,
        "owns_gil": False,
    }
    return [[{**thread, "frames": [inner, {**inner, "name": "main", "filename": "train.py", "line": 7}]}]]


@cache
def error_files() -> list[Any]:
    inner = {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1"}, "errorCode": 3}
    return [{"message": inner}, {"message": "killed"}]


@cache
def recordings() -> list[Any]:
    """Evidence of real jobs: the last look of every recording that is small enough to be read often."""
    found = []
    for path in sorted((REPOSITORY / "zoo" / "recorded").rglob("*.json.xz")):
        if path.stat().st_size > 12_000:
            continue
        looks = json.loads(lzma.decompress(path.read_bytes()))["looks"]
        if looks:
            found.append(looks[-1]["evidence"])
    return found


@cache
def large_recordings() -> list[Any]:
    """The last looks of the four largest recordings."""
    paths = sorted((REPOSITORY / "zoo" / "recorded").rglob("*.json.xz"), key=lambda path: path.stat().st_size)[-4:]
    return [json.loads(lzma.decompress(path.read_bytes()))["looks"][-1]["evidence"] for path in paths]


@cache
def large_dumps() -> list[Any]:
    """As full as torch's recorder is by default, with a stack for every call."""
    whole = dumps()[0]
    call = {**whole["entries"][0], "frames": whole["entries"][0]["frames"] * 20}
    calls = [{**call, "record_id": n, "collective_seq_id": n, "retired": n < 1990} for n in range(2000)]
    return [{**whole, "entries": calls}]


@cache
def large_texts() -> list[bytes]:
    """Half a megabyte of log."""
    return [(each + b"\n") * (500_000 // len(each)) for each in texts()]


@cache
def answers() -> list[bytes]:
    """Of NCCL's RAS."""
    return [path.read_bytes() for path in sorted((REPOSITORY / "tests" / "evidence" / "ras").iterdir())]


@cache
def seeds() -> list[bytes]:
    """Files to begin with, for the readers of files together."""
    evidence = sorted((as_json(each) for each in recordings()), key=len)[:3]
    return [*map(as_pickle, dumps()), *texts(), *map(as_json, error_files()), *map(as_json, stacks()), *evidence]
