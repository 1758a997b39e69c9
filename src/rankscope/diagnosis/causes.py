"""The table of causes. A new cause is one row here, one rule in `rules/`, one program in the zoo.

Its advice is in words in `report/words/advice.py`; docs/causes.md is made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.diagnosis.verdict import Outcome, Retry


@dataclass(frozen=True, slots=True)
class Cause:
    id: str
    outcomes: tuple[Outcome, ...]
    meaning: str
    special: int
    """How much it says: where two causes fit equally well, the more special one is the verdict."""
    retry: Retry
    """What a scheduler should do with the same command."""
    confirm: str = ""
    """Key of the advice that says how to confirm it."""
    references: tuple[str, ...] = ()
    """Public threads about the same failure."""


_ROWS = (
    Cause(
        "collective-skipped",
        ("hang", "crash", "corrupt"),
        "peers wait in a collective that the culprit does not join: its code took another path",
        2,
        "no",
        references=("pytorch/pytorch#54059",),
    ),
    Cause(
        "collective-mismatch",
        ("hang", "crash", "corrupt"),
        "ranks call different operations, sizes, dtypes or roots at the same place of one group's sequence",
        2,
        "no",
    ),
    Cause(
        "group-order-cycle",
        ("hang",),
        "ranks enter the same groups' collectives in different order, each waiting for the other",
        3,
        "no",
        references=("pytorch/pytorch#25390",),
    ),
    Cause(
        "uneven-data",
        ("hang", "crash", "corrupt"),
        "a rank ran out of batches, or left the loop, before the others",
        3,
        "no",
        references=("pytorch/pytorch#141069",),
    ),
    Cause("rank-left", ("hang", "crash"), "a rank ended while others still needed it", 2, "no"),
    Cause(
        "rank-missing",
        ("hang",),
        "a rank of the declared world never started or never reached the set-up",
        2,
        "yes",
    ),
    Cause(
        "blocked-call",
        ("hang",),
        "a call outside the job does not return: network, logger service, model hub, subprocess, pipe, file system",
        2,
        "yes",
    ),
    Cause(
        "lock-wait",
        ("hang",),
        "waiting for a lock: file lock, lock file left by a dead process, in-process lock",
        3,
        "unknown",
        references=("huggingface/datasets#329",),
    ),
    Cause(
        "dataloader-stuck",
        ("hang",),
        "a data-loading worker does not deliver",
        3,
        "unknown",
        references=("pytorch/pytorch#1355",),
    ),
    Cause("frozen-process", ("hang",), "the process is stopped or in uninterruptible sleep", 4, "yes"),
    Cause("gil-held", ("hang",), "native code keeps the interpreter lock", 3, "unknown"),
    Cause("gpu-stuck", ("hang",), "a kernel or the device itself does not finish", 3, "elsewhere"),
    Cause(
        "thread-alive",
        ("hang",),
        "the work is done but a non-daemon thread or child keeps the process from exiting",
        3,
        "no",
    ),
    Cause("slow-rank", ("slow", "hang"), "the culprit is alive and working; the others wait for it", 1, "yes"),
    Cause("exception", ("crash",), "an uncaught Python exception in the culprit", 1, "no"),
    Cause(
        "out-of-memory-host",
        ("crash",),
        "MemoryError, std::bad_alloc, an address-space limit, or the kernel's memory killer",
        3,
        "no",
    ),
    Cause("out-of-memory-gpu", ("crash",), "CUDA out of memory", 3, "no"),
    Cause("killed", ("crash",), "a signal from outside, with no evidence of the memory killer", 1, "yes"),
    Cause("native-crash", ("crash",), "SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL in the culprit", 1, "unknown"),
    Cause("exit-code", ("crash",), "the program itself ended with a non-zero code", 1, "unknown"),
    Cause("port-in-use", ("crash", "hang"), "the rendezvous or master port is taken", 3, "yes"),
    Cause(
        "address-unreachable",
        ("crash", "hang"),
        "MASTER_ADDR does not resolve or does not answer; wrong interface",
        3,
        "no",
    ),
    Cause(
        "device-mapping", ("crash",), "two ranks on one GPU, more ranks than GPUs, wrong CUDA_VISIBLE_DEVICES", 3, "no"
    ),
    Cause("shm-exhausted", ("crash",), "shared memory ran out", 3, "no"),
    Cause("fd-exhausted", ("crash",), "open files ran out", 3, "no"),
    Cause("disk-full", ("crash",), "the disk is full", 3, "yes"),
    Cause("path-race", ("crash",), "ranks race on creating, downloading or reading one path", 3, "yes"),
    Cause("import-failed", ("crash",), "a module is missing or fails to import", 3, "no"),
    Cause("comm-error", ("crash", "hang"), "NCCL, CUDA or fabric error with no better cause", 1, "elsewhere"),
    Cause("nan-input", ("nan",), "a value of the input was not finite", 2, "no"),
    Cause("nan-loss", ("nan",), "the loss stopped being finite", 2, "no"),
    Cause("nan-gradient", ("nan",), "a gradient stopped being finite", 2, "no"),
    Cause("nan-parameter", ("nan",), "a parameter stopped being finite", 2, "no"),
    Cause(
        "parameters-diverged",
        ("corrupt", "hang", "crash"),
        "replicas that must agree no longer do, and no earlier cause was seen",
        2,
        "no",
    ),
    Cause(
        "stalled",
        ("hang",),
        "a rank that others wait for stands still past the threshold in a call that no special cause knows",
        1,
        "unknown",
    ),
    Cause(
        "endless-loop",
        ("slow", "hang"),
        "a rank that others wait for is busy in one loop far beyond its own rhythm and completes nothing",
        2,
        "no",
    ),
)

CAUSES: dict[str, Cause] = {row.id: row for row in _ROWS}
