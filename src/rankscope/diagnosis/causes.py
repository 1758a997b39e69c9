"""The table of causes. A new cause is one row here, one rule in `rules/`, one program in the zoo.

Advice is named by its key; the words for it stand in `report/words`, beside those for the facts of the subject.
docs/verdict.md is made from this table.
"""

from __future__ import annotations

import msgspec

from rankscope.diagnosis.verdict import Outcome, Retry


class Cause(msgspec.Struct, frozen=True):
    id: str
    outcomes: tuple[Outcome, ...]
    meaning: str
    special: int
    """How much it says, where two causes fit equally well: 1 what happened (an exception, stillness), 2 which part of
    the job (a call, a rank), 3 which mechanism or resource (a lock, memory), 4 a state in which nothing else can be."""
    retry: Retry
    """What a scheduler should do with the same command."""
    fix: tuple[str, ...]
    """Keys of the advice that is given where a rule has none of its own."""
    confirm: str = ""
    """Key of the step that would confirm it, where it is not proven."""
    references: tuple[str, ...] = ()
    """Public threads about the same failure."""
    apart: bool = False
    """It says that some ranks did otherwise than the rest: never said of all of them."""


_ROWS = (
    Cause(
        id="collective-skipped",
        outcomes=("hang", "crash", "corrupt"),
        meaning="peers wait in a collective that the culprit does not join: its code took another path",
        special=2,
        retry="no",
        fix=("same-collectives", "one-rank-works"),
        confirm="compare-stacks",
        references=("pytorch/pytorch#54059",),
        apart=True,
    ),
    Cause(
        id="collective-mismatch",
        outcomes=("hang", "crash", "corrupt"),
        meaning="ranks call different operations, sizes, dtypes or roots at the same place of one group's sequence",
        special=2,
        retry="no",
        fix=("same-call", "pad-first"),
        confirm="debug-detail",
        apart=True,
    ),
    Cause(
        id="group-order-cycle",
        outcomes=("hang",),
        meaning="ranks enter the same groups' collectives in different order, each waiting for the other",
        special=3,
        retry="no",
        fix=("one-group-order", "first-group-first"),
        references=("pytorch/pytorch#25390",),
        apart=True,
    ),
    Cause(
        id="uneven-data",
        outcomes=("hang", "crash", "corrupt"),
        meaning="a rank ran out of batches, or left the loop, before the others",
        special=3,
        retry="no",
        fix=("same-batches", "join"),
        confirm="count-batches",
        references=("pytorch/pytorch#141069",),
        apart=True,
    ),
    Cause(
        id="rank-left",
        outcomes=("hang", "crash"),
        meaning="a rank ended while others still needed it",
        special=2,
        retry="no",
        fix=("stop-together", "same-calls-at-end"),
        apart=True,
    ),
    Cause(
        id="rank-missing",
        outcomes=("hang",),
        meaning="a rank of the declared world never started or never reached the set-up",
        special=2,
        retry="yes",
        fix=("all-ranks-join", "count-started-ranks"),
        confirm="look-at-missing-host",
    ),
    Cause(
        id="blocked-call",
        outcomes=("hang",),
        meaning="a call outside the job does not return: network, logger, model hub, subprocess, pipe, file system",
        special=2,
        retry="yes",
        fix=("request-timeout", "time-limit-there"),
        confirm="look-inside",
    ),
    Cause(
        id="lock-wait",
        outcomes=("hang",),
        meaning="waiting for a lock: file lock, lock file left by a dead process, in-process lock",
        special=3,
        retry="unknown",
        fix=("lock-time-limit", "release-lock"),
        confirm="look-for-locks",
        references=("huggingface/datasets#329",),
    ),
    Cause(
        id="dataloader-stuck",
        outcomes=("hang",),
        meaning="a data-loading worker does not deliver",
        special=3,
        retry="unknown",
        fix=("worker-time-limit", "loader-timeout"),
        confirm="without-loader-workers",
        references=("pytorch/pytorch#1355",),
    ),
    Cause(
        id="frozen-process",
        outcomes=("hang",),
        meaning="the process is stopped or in uninterruptible sleep",
        special=4,
        retry="yes",
        fix=("who-stops-it",),
    ),
    Cause(
        id="gil-held",
        outcomes=("hang",),
        meaning="native code keeps the interpreter lock",
        special=3,
        retry="unknown",
        fix=("release-interpreter-lock", "native-time-limit"),
        confirm="look-inside",
    ),
    Cause(
        id="gpu-stuck",
        outcomes=("hang",),
        meaning="a kernel or the device itself does not finish",
        special=3,
        retry="elsewhere",
        fix=("name-the-kernel",),
        confirm="look-at-gpus",
    ),
    Cause(
        id="thread-alive",
        outcomes=("hang",),
        meaning="the work is done but a non-daemon thread or child keeps the process from exiting",
        special=3,
        retry="no",
        fix=("end-the-thread", "daemon-thread"),
        confirm="look-inside",
    ),
    Cause(
        id="slow-rank",
        outcomes=("slow", "hang"),
        meaning="the culprit is alive and working; the others wait for it",
        special=1,
        retry="yes",
        fix=("let-it-work", "split-the-work"),
        confirm="watch-it-longer",
        apart=True,
    ),
    Cause(
        id="exception",
        outcomes=("crash",),
        meaning="an uncaught Python exception in the culprit",
        special=1,
        retry="no",
        fix=("mend-error", "handle-on-all-ranks"),
    ),
    Cause(
        id="out-of-memory-host",
        outcomes=("crash",),
        meaning="MemoryError, std::bad_alloc, an address-space limit, or the kernel's memory killer",
        special=3,
        retry="no",
        fix=("use-less-host-memory", "raise-memory-limit"),
        confirm="kernel-log",
    ),
    Cause(
        id="out-of-memory-gpu",
        outcomes=("crash",),
        meaning="CUDA out of memory",
        special=3,
        retry="no",
        fix=("use-less-gpu-memory", "own-gpu-each"),
    ),
    Cause(
        id="killed",
        outcomes=("crash",),
        meaning="a signal from outside, with no evidence of the memory killer",
        special=1,
        retry="yes",
        fix=("find-who-sent-signal", "look-for-memory-killer"),
        confirm="kernel-log",
    ),
    Cause(
        id="native-crash",
        outcomes=("crash",),
        meaning="SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL in the culprit",
        special=1,
        retry="unknown",
        fix=("look-at-native-code", "run-it-alone"),
        confirm="run-it-alone",
    ),
    Cause(
        id="exit-code",
        outcomes=("crash",),
        meaning="the program itself ended with a non-zero code",
        special=1,
        retry="unknown",
        fix=("see-output-for-end", "end-together"),
        confirm="read-its-log",
    ),
    Cause(
        id="port-in-use",
        outcomes=("crash", "hang"),
        meaning="the rendezvous or master port is taken",
        special=3,
        retry="yes",
        fix=("choose-other-port", "find-port-owner"),
    ),
    Cause(
        id="address-unreachable",
        outcomes=("crash", "hang"),
        meaning="MASTER_ADDR does not resolve or does not answer; wrong interface",
        special=3,
        retry="no",
        fix=("check-master-address", "choose-interface"),
        confirm="check-the-network",
    ),
    Cause(
        id="device-mapping",
        outcomes=("crash",),
        meaning="two ranks on one GPU, more ranks than GPUs, wrong CUDA_VISIBLE_DEVICES",
        special=3,
        retry="no",
        fix=("set-device", "no-more-ranks-than-gpus"),
    ),
    Cause(
        id="shm-exhausted",
        outcomes=("crash",),
        meaning="shared memory ran out",
        special=3,
        retry="no",
        fix=("raise-shm", "fewer-loader-workers"),
    ),
    Cause(
        id="fd-exhausted",
        outcomes=("crash",),
        meaning="open files ran out",
        special=3,
        retry="no",
        fix=("raise-open-files", "share-by-file-system"),
    ),
    Cause(
        id="disk-full",
        outcomes=("crash",),
        meaning="the disk is full",
        special=3,
        retry="yes",
        fix=("free-disk",),
    ),
    Cause(
        id="path-race",
        outcomes=("crash",),
        meaning="ranks race on creating, downloading or reading one path",
        special=3,
        retry="yes",
        fix=("create-on-one-rank", "write-and-rename"),
    ),
    Cause(
        id="import-failed",
        outcomes=("crash",),
        meaning="a module is missing or fails to import",
        special=3,
        retry="no",
        fix=("install-module",),
    ),
    Cause(
        id="comm-error",
        outcomes=("crash", "hang"),
        meaning="NCCL, CUDA or fabric error with no better cause",
        special=1,
        retry="elsewhere",
        fix=("look-at-other-hosts", "nccl-debug-info"),
        confirm="nccl-debug-info",
    ),
    Cause(
        id="nan-input",
        outcomes=("nan",),
        meaning="a value of the input was not finite",
        special=2,
        retry="no",
        fix=("clean-the-sample", "check-normalisation"),
        confirm="detect-anomaly",
    ),
    Cause(
        id="nan-loss",
        outcomes=("nan",),
        meaning="the loss stopped being finite",
        special=2,
        retry="no",
        fix=("look-for-log-of-zero", "detect-anomaly"),
        confirm="detect-anomaly",
    ),
    Cause(
        id="nan-gradient",
        outcomes=("nan",),
        meaning="a gradient stopped being finite",
        special=2,
        retry="no",
        fix=("add-epsilon", "stop-before-the-step"),
        confirm="detect-anomaly",
    ),
    Cause(
        id="nan-parameter",
        outcomes=("nan",),
        meaning="a parameter stopped being finite",
        special=2,
        retry="no",
        fix=("lower-the-rate", "go-back-to-checkpoint"),
    ),
    Cause(
        id="parameters-diverged",
        outcomes=("corrupt", "hang", "crash"),
        meaning="replicas that must agree no longer do, and no earlier cause was seen",
        special=2,
        retry="no",
        fix=("skip-steps-together", "load-everywhere", "look-for-other-writers", "repeat-on-each-device"),
        apart=True,
    ),
    Cause(
        id="stalled",
        outcomes=("hang",),
        meaning="a rank that others wait for stands still past the threshold in a call that no special cause knows",
        special=1,
        retry="unknown",
        fix=("time-limit-there",),
        confirm="look-inside",
    ),
    Cause(
        id="endless-loop",
        outcomes=("slow", "hang"),
        meaning="a rank that others wait for is busy in one loop far beyond its own rhythm and completes nothing",
        special=2,
        retry="no",
        fix=("time-limit-there",),
        confirm="look-again",
    ),
)

CAUSES: dict[str, Cause] = {row.id: row for row in _ROWS}
