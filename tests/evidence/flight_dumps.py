"""Flight-recorder dumps for tests, as torch writes them: name what matters, the rest has plain defaults."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

SITE = "/opt/venv/lib/python3.11/site-packages/torch"
BEGAN_NS = 1_794_722_970_000_000_000


def frames(function: str, line: int, file: str = "/home/me/train.py", started: int = 99) -> list[dict[str, Any]]:
    """`started`: the line outside of all functions from which it went on."""
    return [
        {"name": "all_reduce", "filename": f"{SITE}/distributed/distributed_c10d.py", "line": 3245},
        {"name": function, "filename": file, "line": line},
        {"name": "<module>", "filename": file, "line": started},
    ]


def call(seq: int, op: str = "all_reduce", size: int = 8, line: int = 10, **fields: Any) -> dict[str, Any]:
    """The place in the group's sequence also gives time and record; `done=False` for one that is waited in."""
    done = fields.pop("done", True)
    group = fields.pop("group", "0")
    at = BEGAN_NS + seq * 10_000_000
    return {
        "frames": frames(fields.pop("function", "step"), line),
        "record_id": fields.pop("record", seq - 1),
        "pg_id": int(group) if group.isdigit() else 0,
        "process_group": (group, "default_pg" if group == "0" else "undefined"),
        "thread_name": "pt_main_thread",
        "thread_id": "1",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": at,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "output_dtypes": ["Float"],
        "state": "completed" if done else "started",
        "time_discovered_started_ns": at + 1,
        "time_discovered_completed_ns": at + 2 if done else None,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": False,
        **fields,
    }


def dump(*calls: dict[str, Any], ranks: int = 4, shift_ns: int = 0) -> dict[str, Any]:
    moved = [{**each, "time_created_ns": each["time_created_ns"] + shift_ns} for each in calls]
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
        "pg_status": {},
        "comm_lib_version": "",
        "entries": moved,
    }


def write(folder: Path, rank: int, *calls: dict[str, Any], ranks: int = 4, name: str = "nccl_trace_rank_") -> Path:
    """Each rank's clock is a little off, so that no two dumps are equal."""
    path = folder / f"{name}{rank}"
    path.write_bytes(pickle.dumps(dump(*calls, ranks=ranks, shift_ns=rank), protocol=2))
    return path
