"""A living rank that waits for nobody: what it does instead decides the cause."""

from __future__ import annotations

from typing import Any

import factories as make
import pytest
from in_words import Told, in_words
from msgspec.structs import replace

from rankscope.diagnosis.rules.standing.readings import explain_standing
from rankscope.evidence.model import FileLock, RankEvidence, Syscall

URLOPEN = (
    make.lib("socket.py", "readinto"),
    make.lib("http/client.py", "begin"),
    make.lib("urllib/request.py", "urlopen"),
)
LOADER = (make.lib("multiprocessing/queues.py", "get"), make.lib("torch/utils/data/dataloader.py", "_next_data"))
TCP = "tcp 127.0.0.1:5000 -> 127.0.0.1:9000"


def explain(rank: RankEvidence, *others: RankEvidence, **fields: Any) -> Told:
    """The finding, with all facts in words."""
    return in_words(explain_standing(rank, make.evidence(rank, *others, **fields), waiters=(0, 1, 3)))


def still(*threads: Any, **fields: Any) -> RankEvidence:
    return make.rank(2, *threads, **{"still_for_s": 12.0, "processes": make.process(), **fields})


def test_an_unanswered_request_is_a_blocked_call_with_its_address() -> None:
    rank = still(
        make.stack("train.py", 88, "push_metrics", URLOPEN), processes=make.process(Syscall("recvfrom", 5, TCP))
    )
    finding = explain(rank)
    assert (finding.outcome, finding.cause, finding.certainty) == ("hang", "blocked-call", "likely")
    where = finding.culprits[0].where
    assert where is not None
    assert (where.line, where.function) == (88, "push_metrics")
    assert finding.summary.startswith(
        "rank 2 is stuck in push_metrics (train.py:88), waiting for an answer from 127.0.0.1:9000"
    )
    assert "urllib.request.urlopen" in finding.culprits[0].doing
    assert f"waits in recvfrom on {TCP}" in finding.because
    assert "two samples 0.5 s apart: same stack, no processor time, nothing read or written" in finding.because
    assert "not moved for 12 s" in finding.because
    assert "ranks 0, 1, 3 wait for it" in finding.because
    assert "timeout" in finding.fix[0]


def test_before_the_threshold_a_wait_is_only_possible() -> None:
    rank = still(
        make.stack("train.py", 88, "push"), processes=make.process(Syscall("recvfrom", 5, TCP)), still_for_s=3.0
    )
    assert explain(rank).certainty == "possible"
    assert explain(rank, stall_after_s=None).certainty == "possible"
    assert explain(rank, stall_after_s=3.0).certainty == "likely"


@pytest.mark.parametrize(
    ("syscall", "fields", "words"),
    [
        (Syscall("connect", 4, "tcp 10.0.0.1:1 -> 10.0.0.9:443"), {}, "connecting to 10.0.0.9:443"),
        (Syscall("accept", 4, "tcp 0.0.0.0:7000 listening"), {}, "waiting for a connection to 0.0.0.0:7000"),
        (Syscall("poll", None, None), {"sockets": ("10.0.0.9:443",)}, "waiting for an answer from 10.0.0.9:443"),
        (
            Syscall("openat", None, "/data/spool/7"),
            {"wchan": "wait_for_partner"},
            "a pipe whose other end nobody opens",
        ),
        (Syscall("openat", None, "/mnt/x"), {}, "opening /mnt/x"),
        (Syscall("read", 7, "pipe"), {}, "reading from a pipe that nobody writes to"),
        (Syscall("read", 0, "/dev/pts/3"), {}, "waiting for somebody to type"),
        (Syscall("clock_nanosleep"), {}, "sleeping in fetch (train.py:40)"),
        (Syscall("fsync", 3, "/mnt/ckpt"), {"wchan": "nfs_wait_bit"}, "network file system for /mnt/ckpt"),
        (Syscall("recvfrom", 3, "tcp 127.0.0.1:5 -> 127.0.0.1:29500"), {}, "the job's own store at 127.0.0.1:29500"),
    ],
)
def test_the_system_call_says_what_is_waited_for(syscall: Syscall, fields: dict[str, Any], words: str) -> None:
    rank = still(
        make.stack("train.py", 40, "fetch"),
        processes=make.process(syscall, **fields),
        environment={"MASTER_PORT": "29500"},
    )
    finding = explain(rank)
    assert finding.cause == "blocked-call"
    assert words in finding.culprits[0].doing


def test_a_wait_for_a_child_names_its_command() -> None:
    rank = still(
        make.stack("train.py", 12, "convert", [make.lib("subprocess.py", "_wait")]),
        processes=make.process(Syscall("wait4", None, "process 77")),
        children=(make.child(70, "other"), make.child(77, "ffmpeg -i a.mp4")),
    )
    finding = explain(rank)
    assert finding.cause == "blocked-call"
    assert finding.culprits[0].process == "rank"
    assert "77 (ffmpeg -i a.mp4)" in finding.culprits[0].doing
    assert "other" not in finding.culprits[0].doing


def test_a_wait_for_a_pools_worker_is_placed_by_that_worker() -> None:
    inner = [make.lib("threading.py", "Condition.wait"), make.lib("multiprocessing/pool.py", "ApplyResult.get")]
    below = make.lib("multiprocessing/process.py", "BaseProcess._bootstrap")
    rank = still(
        make.stack("train.py", 12, "convert", inner),
        processes=make.process("futex"),
        children=make.child(77, "python train.py", make.frame("work.py", 3, "shrink"), below),
    )
    finding = explain(rank)
    assert finding.cause == "blocked-call"
    assert "which stands in shrink (work.py:3)" in finding.culprits[0].doing


def test_a_stopped_process_is_frozen_whatever_it_stands_in() -> None:
    rank = still(
        make.stack("train.py", 50, "train", LOADER), processes=make.process(state="T"), children=make.idle_worker(9)
    )
    finding = explain(rank)
    assert (finding.cause, finding.certainty) == ("frozen-process", "likely")
    assert finding.culprits[0].doing == "stopped (SIGSTOP or a debugger)"
    assert "kill -CONT 4002" in finding.fix[0]


def test_a_moment_under_a_tracer_is_not_frozen() -> None:
    first, last = make.process(Syscall("recvfrom", 5, TCP))
    traced = make.process(Syscall("recvfrom", 5, TCP), state="t")[1]
    assert explain(still(make.stack("train.py", 5, "f"), processes=(first, traced))).cause == "blocked-call"
    assert explain(still(make.stack("train.py", 5, "f"), processes=(first, traced, traced))).cause == "frozen-process"
    assert last.state == "S"


def test_uninterruptible_sleep_in_all_samples_is_frozen_unless_bytes_move() -> None:
    stack = make.stack("train.py", 50, "save")
    finding = explain(still(stack, processes=make.process(state="D", wchan="nfs_wait_on_request")))
    assert finding.cause == "frozen-process"
    assert finding.culprits[0].doing == "in uninterruptible sleep in nfs_wait_on_request"
    assert finding.alternatives[0].cause == "blocked-call"
    assert explain(still(stack, processes=make.process(state="D", io=5_000_000))).cause == "slow-rank"


def test_the_worker_that_stands_in_user_code_is_the_culprit() -> None:
    stuck = make.worker(
        61, make.frame("train.py", 33, "__getitem__"), make.lib("torch/utils/data/_utils/fetch.py", "fetch"),
        processes=make.process(Syscall("openat", None, "/spool/4"), wchan="wait_for_partner"),
    )  # fmt: skip
    rank = still(
        make.stack("train.py", 61, "train", LOADER),
        processes=make.process("poll"),
        children=(make.idle_worker(60), stuck, make.idle_worker(62)),
    )
    finding = explain(rank)
    assert (finding.cause, finding.certainty) == ("dataloader-stuck", "likely")
    [culprit] = finding.culprits
    assert (culprit.process, culprit.pid, culprit.rank) == ("dataloader-worker", 61, 2)
    assert culprit.where is not None
    assert (culprit.where.line, culprit.where.function) == (33, "__getitem__")
    assert "opening /spool/4" in culprit.doing
    assert [each.cause for each in finding.alternatives] == ["blocked-call"]


def test_a_stopped_worker_is_the_culprit_even_when_idle() -> None:
    stopped = make.worker(61, make.lib("multiprocessing/queues.py", "get"), processes=make.process(state="T"))
    rank = still(make.stack("train.py", 61, "train", LOADER), children=(make.idle_worker(60), stopped))
    finding = explain(rank)
    assert finding.cause == "dataloader-stuck"
    assert (finding.culprits[0].pid, finding.culprits[0].doing) == (61, "stopped (SIGSTOP or a debugger)")


def test_with_only_idle_or_no_workers_the_rank_itself_is_named() -> None:
    main = make.stack("train.py", 61, "train", LOADER)
    idle = explain(still(main, children=(make.idle_worker(60),)))
    gone = explain(still(main, progress=make.progress(loader=make.loader(3, workers=2, in_next=True))))
    for finding in (idle, gone):
        assert finding.cause == "dataloader-stuck"
        assert finding.culprits[0].process == "rank"
        assert finding.culprits[0].where is not None
        assert finding.culprits[0].where.line == 61
    assert "2 of 2 data-loading workers are gone" in gone.because


def test_a_worker_at_work_is_slow_and_not_stuck() -> None:
    busy = make.worker(61, make.frame("train.py", 33, "__getitem__"), processes=make.process(cpu=0.4))
    rank = still(make.stack("train.py", 61, "train", LOADER), children=(busy, make.idle_worker(60)))
    finding = explain(rank)
    assert (finding.outcome, finding.cause, finding.certainty) == ("slow", "slow-rank", "likely")
    assert "loading data" in finding.culprits[0].doing


def test_without_workers_the_datasets_own_frame_counts() -> None:
    fetch = [
        make.lib("torch/utils/data/_utils/fetch.py", "fetch"),
        make.lib("torch/utils/data/dataloader.py", "__next__"),
    ]
    main = make.thread((make.frame("data.py", 7, "__getitem__"), *fetch, make.frame("train.py", 61, "train")))
    finding = explain(still(main, processes=make.process(Syscall("recvfrom", 5, TCP))))
    assert finding.cause == "blocked-call"
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.function == "__getitem__"


def test_native_code_that_keeps_the_interpreter_lock_is_named() -> None:
    main = make.stack("tokenizer.py", 16, "take", gil=True)
    with_native = make.thread((make.native("__futex_abstimed_wait"), make.native("sem_wait"), *main.frames), gil=True)
    stacks = (*make.samples(main), *make.samples(with_native, times=1, source="py-spy-native"))
    finding = explain(still(stacks=stacks, processes=make.process("futex")))
    assert (finding.cause, finding.certainty) == ("gil-held", "likely")
    assert finding.culprits[0].doing == "native code (sem_wait) keeps the interpreter lock"
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 16


def test_one_sample_with_the_lock_needs_the_silent_listener_too() -> None:
    one = make.samples(make.stack("tokenizer.py", 16, "take", gil=True), times=1)
    silent = {"listener": "did not answer: the interpreter lock may be held"}
    assert explain(still(stacks=one, missing=silent)).cause == "gil-held"
    assert explain(still(stacks=one)).cause != "gil-held"


def test_holding_the_lock_while_computing_is_work() -> None:
    main = make.stack("train.py", 16, "mine", gil=True)
    assert explain(still(main, processes=make.process(cpu=0.5))).cause == "slow-rank"


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (4001, "held by rank 1 (process 4001), which stands in index (train.py:9)"),
        (999, "held by process 999 outside the job"),
        (81, "held by a child of rank 1 (process 81: indexer)"),
    ],
)
def test_a_file_lock_names_its_holder(holder: int, words: str) -> None:
    lock = FileLock("/cache/x.lock", "flock", holder)
    rank = still(make.stack("train.py", 30, "load"), processes=make.process("flock", waits_for_lock=lock))
    other = make.rank(1, make.stack("train.py", 9, "index"), children=make.child(81, "indexer"))
    finding = explain(rank, other)
    assert (finding.cause, finding.certainty) == ("lock-wait", "likely")
    assert words in finding.culprits[0].doing
    assert "/cache/x.lock" in finding.summary


def test_a_lock_left_by_an_ended_rank_says_so() -> None:
    lock = FileLock("/cache/x.lock", "flock", 4001)
    rank = still(make.stack("train.py", 30, "load"), processes=make.process("flock", waits_for_lock=lock))
    finding = explain(rank, make.rank(1, exit=make.ended(0)))
    assert "which has ended" in finding.culprits[0].doing


def test_a_lock_file_that_is_polled_is_a_lock_though_its_line_changes() -> None:
    def seen(line: int) -> Any:
        return make.stack("train.py", 4, "build", [make.lib("torch/utils/file_baton.py", "wait", line)])

    stacks = (*make.samples(seen(50), times=1), *make.samples(seen(51), times=1))
    tail = ('UserWarning: Waited on lock file "/cache/torch_extensions/lock" for 60 seconds.',)
    finding = explain(still(stacks=stacks, processes=make.process("clock_nanosleep"), error_tail=tail))
    assert finding.cause == "lock-wait"
    assert "/cache/torch_extensions/lock" in finding.culprits[0].doing


def test_who_waits_for_a_thread_that_has_died_hears_of_its_exception() -> None:
    main = make.stack("train.py", 27, "next_batch", [make.lib("threading.py", "wait"), make.lib("queue.py", "get")])
    error = replace(
        make.raised("ZeroDivisionError", "", make.frame("train.py", 21, "augment"), source="output"), thread="Thread-1"
    )
    finding = explain(still(main, processes=make.process("futex"), exceptions=error))
    assert finding.cause == "lock-wait"
    assert "thread Thread-1 has ended with ZeroDivisionError at augment (train.py:21)" in finding.because
    assert finding.fix[0].startswith("let the thread hand its exception over")
    assert finding.alternatives[0].cause == "exception"


def test_a_lock_of_the_process_is_told_by_library_frames_or_by_the_line() -> None:
    for name in ("wait", "Event.wait", "Condition.wait"):
        main = make.stack("train.py", 4, "sync", [make.lib("threading.py", name)])
        assert explain(still(main, processes=make.process("futex"))).cause == "lock-wait"
    plain = still(make.stack("train.py", 2, "sync"), processes=make.process("futex"))
    assert explain(plain, source={"train.py": "def sync():\n    with guard:\n        pass\n"}).cause == "lock-wait"
    unknown = explain(plain, source={"train.py": "def sync():\n    encode(text)\n"})
    assert (unknown.cause, unknown.certainty) == ("stalled", "likely")


def test_the_thread_beside_a_lock_wait_is_mentioned() -> None:
    beside = make.stack("train.py", 70, "flush", main=False, tid=4100, name="writer")
    main = make.stack("train.py", 4, "sync", [make.lib("threading.py", "__enter__")])
    finding = explain(still(main, beside, processes=make.process("futex")))
    assert "thread writer stands in flush (train.py:70)" in finding.because


@pytest.mark.parametrize(
    ("path", "function"),
    [("threading.py", "join"), ("threading.py", "Thread.join"), ("concurrent/futures/_base.py", "Future.result")],
)
def test_joining_a_thread_is_explained_by_that_thread(path: str, function: str) -> None:
    beside = make.stack("upload.py", 70, "upload", URLOPEN, main=False, tid=4100, name="uploader")
    main = make.stack("train.py", 4, "close", [make.lib(path, function)])
    finding = explain(still(main, beside, processes=make.process("futex")))
    assert finding.cause == "blocked-call"
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.function == "upload"


def test_a_thread_that_outlives_the_program_is_named() -> None:
    main = make.thread((make.lib("threading.py", "_shutdown"),))
    beside = make.stack("monitor.py", 8, "watch", main=False, tid=4100, name="monitor")
    finding = explain(still(main, beside, processes=make.process("futex")))
    assert (finding.outcome, finding.cause, finding.certainty) == ("hang", "thread-alive", "likely")
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.function == "watch"
    assert "daemon" in finding.fix[1]


def test_a_child_that_outlives_the_program_is_named() -> None:
    main = make.thread(
        (make.lib("multiprocessing/process.py", "join"), make.lib("multiprocessing/util.py", "_exit_function"))
    )
    served = make.child(
        91,
        "python train.py",
        make.frame("serve.py", 5, "serve"),
        make.lib("multiprocessing/process.py", "BaseProcess._bootstrap"),
    )
    finding = explain(still(main, children=served, processes=make.process(Syscall("wait4", None, "process 91"))))
    assert finding.cause == "thread-alive"
    assert (finding.culprits[0].process, finding.culprits[0].pid) == ("child", 91)
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.function == "serve"


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        ([make.lib("torch/_inductor/codecache.py", "load")], "compiling in step (train.py:20)"),
        ([make.lib("torch/serialization.py", "save")], "saving a checkpoint in step (train.py:20)"),
        ([make.lib("datasets/arrow_dataset.py", "map")], "tokenising or preprocessing data in step (train.py:20)"),
        ([make.frame("<frozen importlib._bootstrap>", 5, "_find_and_load")], "importing in step (train.py:20)"),
        ([], "working in step (train.py:20)"),
    ],
)
def test_a_moving_rank_is_slow_and_its_phase_is_said(inner: list[Any], words: str) -> None:
    finding = explain(still(make.stack("train.py", 20, "step", inner), processes=make.process(cpu=0.4)))
    assert (finding.outcome, finding.cause, finding.certainty) == ("slow", "slow-rank", "likely")
    assert finding.culprits[0].doing == words


def test_bytes_or_another_line_are_life_too() -> None:
    waiting = make.process(Syscall("recvfrom", 5, TCP), io=1_000_000)
    assert explain(still(make.stack("train.py", 20, "pull"), processes=waiting)).cause == "slow-rank"
    stacks = (
        *make.samples(make.stack("train.py", 20, "f"), times=1),
        *make.samples(make.stack("train.py", 21, "f"), times=1),
    )
    assert explain(still(stacks=stacks)).cause == "slow-rank"


def test_with_no_evidence_at_all_nothing_is_claimed() -> None:
    finding = explain(make.rank(2, missing={"stacks": "ptrace is not permitted"}))
    assert (finding.cause, finding.certainty) == ("stalled", "possible")
    assert finding.culprits[0].where is None
    assert "stacks could not be had: ptrace is not permitted" in finding.because


def test_a_rank_that_never_initialised_lists_that_as_an_alternative() -> None:
    rank = still(
        make.stack("train.py", 9, "main"), progress=make.progress(world=0), processes=make.process("clock_nanosleep")
    )
    finding = explain(rank, make.rank(0, progress=make.progress(world=3)))
    assert finding.cause == "blocked-call"
    assert finding.alternatives[-1].cause == "rank-missing"
