"""The words for stages, in the form that people know from their own prints."""

from __future__ import annotations

import re
from typing import Any

from rankscope.evidence.model import Frame, Gpu, Stage
from rankscope.report.stage_lines import Position, Speaker, begun_line, ended_line, who_is_where
from rankscope.report.status_lines import status_lines

SPEAKER = Speaker(rank=0, local_rank=0, world_size=2, pid=12345, started_at=1000.0)


def make_stage(**changes: Any) -> Stage:
    fields: dict[str, Any] = {
        "index": 4,
        "label": "Net.__init__",
        "words": "Model created",
        "kind": "model",
        "note": "",
        "entered_at": 1002.0,
        "left_at": 1002.456,
        "number": 5,
        "failed": False,
        "announced": False,
        "always": False,
        "thread": 1,
        "memory_before": 0,
        "memory_after": 0,
        "gpu_before": 0,
        "gpu_after": 0,
        "site": (Frame("main", "/home/me/train.py", 88, user=True),),
    }
    return Stage(**{**fields, **changes})


def test_line_has_time_rank_process_and_number() -> None:
    line = ended_line(make_stage(left_at=1002.0), SPEAKER)
    assert re.fullmatch(
        r"\[\d\d:\d\d:\d\d\.000\]\[\+2\.000s\]\[R0/2\]\[LR0\]\[PID:12345\] CHECKPOINT 5: Model created", line
    )


def test_line_of_a_long_call_tells_time_and_memory_added() -> None:
    stage = make_stage(memory_before=1 << 30, memory_after=3 << 30, gpu_after=512 << 20, note="Net")
    assert ended_line(stage, SPEAKER).endswith(
        "CHECKPOINT 5: Model created (Net; 0.46 s; host 3.00 GB, +2.00 GB; GPU 512 MB, +512 MB)"
    )


def test_long_calls_are_announced() -> None:
    assert begun_line(make_stage(label="WandbLogger.__init__"), SPEAKER).endswith(
        " About to call WandbLogger constructor..."
    )
    assert begun_line(make_stage(label="Trainer.__init__", note="strategy=auto"), SPEAKER).endswith(
        " About to call Trainer constructor with strategy=auto..."
    )
    assert begun_line(make_stage(label="first forward"), SPEAKER).endswith(" About to start first forward...")


def test_other_marks_keep_their_own_form() -> None:
    memory = make_stage(always=True, words="MEM:POST-MODEL", kind="memory", number=0, memory_after=1 << 30)
    assert ended_line(memory, SPEAKER).endswith(" MEM:POST-MODEL host 1.00 GB")
    lock = make_stage(always=True, words="LOCK: released", kind="lock", number=0)
    assert ended_line(lock, SPEAKER) == "[Rank 0] LOCK: released"
    folder = make_stage(words="Directory ready", kind="directory", note="logs", number=3, left_at=1002.0)
    assert ended_line(folder, SPEAKER).endswith("CHECKPOINT 3: Logs directory ready")
    failed = make_stage(failed=True, number=0, label="wandb.init")
    assert ended_line(failed, SPEAKER).endswith(" wandb.init failed (0.46 s)")


def test_a_stage_cannot_forge_a_line() -> None:
    line = ended_line(make_stage(words="done\n[00:00:00.000] CHECKPOINT 9: \x1b[31mforged"), SPEAKER)
    assert "\n" not in line
    assert "\x1b" not in line


def test_one_line_says_who_is_where() -> None:
    forward = make_stage(label="first forward", left_at=None, number=0)
    logger = make_stage(label="WandbLogger.__init__", left_at=None, number=0)
    positions = {rank: Position(forward, 14, "DDP ready", 1030.0, training=False) for rank in (0, 1, 2, 4, 5, 6, 7)}
    positions[3] = Position(logger, 8, "Accelerator configured", 1002.0, training=False)
    assert who_is_where(positions, 1043.0) == (
        'ranks 0-2,4-7 are in "first forward" (stage 14); '
        'rank 3 has been in "WandbLogger.__init__" for 41 s (train.py:88)'
    )
    positions[3] = Position(None, 8, "Accelerator configured", 1002.0, training=False)
    assert who_is_where(positions, 1043.0).endswith('rank 3 has been after "Accelerator configured" for 41 s (stage 8)')


def test_environment_is_told_once_and_of_each_rank_what_differs() -> None:
    lines = status_lines(
        {
            0: {"RANK": "0", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"},
            1: {"RANK": "1", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"},
            2: {"RANK": "2", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"},
        },
        {"torch": "2.13.0", "executable": "/usr/bin/python"},
        (Gpu(0, "H200", None, 1 << 30, 141 << 30, None),),
    )
    assert lines == [
        "versions: torch 2.13.0",
        "GPUs: 0 H200 (140 of 141 GB free)",
        "environment of ranks 0-2: RANK=0..2 NCCL_DEBUG=INFO",
        "  rank 0 alone: OMP_NUM_THREADS=4",
        "  ranks 1, 2 alone: OMP_NUM_THREADS=8",
    ]


def test_environment_of_one_rank_is_told_as_it_is() -> None:
    (_, _, told) = status_lines({0: {"RANK": "0"}}, {}, "none")
    assert told == "environment of rank 0: RANK=0"
