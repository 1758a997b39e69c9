"""What a still rank waits for, read from its stack: handlers, queues, pools, executors, event loops, databases."""

from __future__ import annotations

from typing import Any

import factories as make
import pytest
from in_words import Told, in_words

from rankscope.diagnosis.rules.standing.readings import explain_standing
from rankscope.evidence.model import ChildProcess, RankEvidence, Syscall

FUTEX = make.process("futex")
RESULT = [make.lib("threading.py", "Condition.wait"), make.lib("concurrent/futures/_base.py", "Future.result")]
EVENT_LOOP = [
    make.lib("selectors.py", "EpollSelector.select"),
    make.lib("asyncio/base_events.py", "BaseEventLoop._run_once"),
    make.lib("asyncio/base_events.py", "BaseEventLoop.run_until_complete"),
    make.lib("asyncio/runners.py", "run"),
]


def explain(rank: RankEvidence, **fields: Any) -> Told:
    return in_words(explain_standing(rank, make.evidence(rank, **fields), waiters=(0, 1, 3)))


def still(*threads: Any, **fields: Any) -> RankEvidence:
    return make.rank(2, *threads, **{"still_for_s": 40.0, "processes": FUTEX, **fields})


def pool_worker(pid: int, *frames: Any) -> ChildProcess:
    below = (make.lib("multiprocessing/pool.py", "worker"), make.lib("multiprocessing/process.py", "_bootstrap"))
    return make.child(pid, "python train.py", *frames, *below)


def idle_pool_worker(pid: int) -> ChildProcess:
    return pool_worker(
        pid, make.lib("multiprocessing/connection.py", "_recv"), make.lib("multiprocessing/queues.py", "get")
    )


@pytest.mark.parametrize("innermost", ["Handler.acquire", "Handler.handle", "StreamHandler.flush"])
def test_the_lock_of_a_log_handler_is_named(innermost: str) -> None:
    inner = [make.lib("logging/__init__.py", innermost), make.lib("logging/__init__.py", "Logger.info")]
    finding = explain(still(make.stack("train.py", 8, "log", inner)))
    assert (finding.cause, finding.certainty) == ("lock-wait", "likely")
    assert finding.culprits[0].doing == "waiting for the lock of a log handler"
    assert "handler" in finding.fix[0]


def test_a_log_handler_that_writes_to_a_full_pipe_or_a_silent_server_is_a_blocked_call() -> None:
    stream = [make.lib("logging/__init__.py", "StreamHandler.emit"), make.lib("logging/__init__.py", "Logger.info")]
    full = make.process(Syscall("write", 1, "pipe"))
    piped = explain(still(make.stack("train.py", 8, "log", stream), processes=full))
    assert (piped.cause, piped.certainty) == ("blocked-call", "likely")
    assert "writing to a pipe that nobody reads" in piped.culprits[0].doing
    server = [make.lib("logging/handlers.py", "SocketHandler.send"), make.lib("logging/__init__.py", "Logger.info")]
    call = Syscall("sendto", 4, "tcp 127.0.0.1:5000 -> 10.0.0.3:9020")
    sent = explain(still(make.stack("train.py", 8, "log", server), processes=make.process(call)))
    assert sent.cause == "blocked-call"
    assert "sending to 10.0.0.3:9020" in sent.culprits[0].doing


@pytest.mark.parametrize(("way", "words"), [("put", "full queue"), ("get", "empty queue")])
def test_a_queue_between_threads_says_whether_it_is_full_or_empty(way: str, words: str) -> None:
    inner = [make.lib("threading.py", "Condition.wait"), make.lib("queue.py", f"Queue.{way}")]
    finding = explain(still(make.stack("train.py", 8, "feed", inner)))
    assert (finding.cause, finding.certainty) == ("lock-wait", "likely")
    assert words in finding.culprits[0].doing


def test_putting_into_a_full_queue_between_processes_names_the_reader_that_stands() -> None:
    main = make.stack("train.py", 8, "feed", [make.lib("multiprocessing/queues.py", "Queue.put")])
    alone = explain(still(main))
    assert (alone.cause, alone.certainty) == ("blocked-call", "likely")
    assert "full" in alone.culprits[0].doing
    below = make.lib("multiprocessing/process.py", "BaseProcess._bootstrap")
    reader = make.child(77, "python train.py", make.frame("writer.py", 5, "write_all"), below)
    finding = explain(still(main, children=reader))
    assert finding.cause == "blocked-call"
    assert "which stands in write_all (writer.py:5)" in finding.culprits[0].doing


def test_reading_from_an_empty_queue_between_processes_is_a_blocked_call() -> None:
    inner = [make.lib("multiprocessing/connection.py", "_recv"), make.lib("multiprocessing/queues.py", "Queue.get")]
    finding = explain(
        still(make.stack("train.py", 8, "take", inner), processes=make.process(Syscall("read", 7, "pipe")))
    )
    assert (finding.cause, finding.certainty) == ("blocked-call", "likely")


def test_a_program_that_ends_before_its_queue_is_read_is_kept_by_it() -> None:
    frames = (
        make.lib("threading.py", "Thread.join"),
        make.lib("multiprocessing/queues.py", "Queue._finalize_join"),
        make.lib("multiprocessing/util.py", "_exit_function"),
    )
    feeder = make.thread(
        (make.lib("multiprocessing/connection.py", "_send"), make.lib("multiprocessing/queues.py", "Queue._feed")),
        main=False, tid=4100, name="QueueFeederThread",
    )  # fmt: skip
    finding = explain(still(make.thread(frames), feeder, children=make.child(77, "python train.py")))
    assert (finding.cause, finding.certainty) == ("thread-alive", "likely")
    assert finding.summary == (
        "rank 2 has finished, but a queue between processes that nobody reads keeps it from exiting"
    )
    assert any("cancel_join_thread" in advice for advice in finding.fix)


def test_a_pool_whose_workers_are_all_idle_has_lost_its_task() -> None:
    inner = [make.lib("threading.py", "Condition.wait"), make.lib("multiprocessing/pool.py", "ApplyResult.get")]
    rank = still(make.stack("train.py", 8, "convert", inner), children=(idle_pool_worker(70), idle_pool_worker(71)))
    finding = explain(rank)
    assert (finding.cause, finding.certainty) == ("blocked-call", "likely")
    assert "no worker has a task" in finding.culprits[0].doing
    busy = pool_worker(72, make.frame("work.py", 3, "shrink"))
    named = explain(still(make.stack("train.py", 8, "convert", inner), children=(idle_pool_worker(70), busy)))
    assert "which stands in shrink (work.py:3)" in named.culprits[0].doing


def test_a_pool_of_processes_is_not_explained_by_an_unrelated_thread() -> None:
    inner = [make.lib("threading.py", "Condition.wait"), make.lib("multiprocessing/pool.py", "ApplyResult.get")]
    beside = make.stack("monitor.py", 8, "watch", main=False, tid=4100, name="monitor")
    rank = still(make.stack("train.py", 8, "convert", inner), beside, children=(idle_pool_worker(70),))
    assert "monitor" not in explain(rank).culprits[0].doing


def test_a_pool_of_threads_is_explained_by_its_worker() -> None:
    inner = [make.lib("threading.py", "Condition.wait"), make.lib("multiprocessing/pool.py", "ApplyResult.get")]
    below = (make.lib("multiprocessing/pool.py", "worker"), make.lib("threading.py", "Thread.run"))
    beside = make.thread((make.frame("load.py", 6, "load"), *below), main=False, tid=4100, name="Thread-3")
    finding = explain(still(make.stack("train.py", 8, "convert", inner), beside))
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.function == "load"


def test_a_future_of_processes_is_explained_by_the_process() -> None:
    below = (
        make.lib("concurrent/futures/process.py", "_process_worker"),
        make.lib("multiprocessing/process.py", "_bootstrap"),
    )
    worker = make.child(77, "python train.py", make.frame("work.py", 3, "shrink"), *below)
    finding = explain(still(make.stack("train.py", 8, "convert", RESULT), children=worker))
    assert finding.cause == "blocked-call"
    assert "which stands in shrink (work.py:3)" in finding.culprits[0].doing


def test_a_future_of_a_library_call_is_explained_by_the_executors_thread() -> None:
    task = (
        make.lib("socket.py", "SocketIO.readinto"),
        make.lib("requests/api.py", "post"),
        make.lib("concurrent/futures/thread.py", "_WorkItem.run"),
        make.lib("concurrent/futures/thread.py", "_worker"),
    )
    beside = make.thread(task, main=False, tid=4100, name="pool_0")
    finding = explain(still(make.stack("train.py", 8, "publish", RESULT), beside))
    assert (finding.cause, finding.certainty) == ("blocked-call", "likely")
    assert finding.culprits[0].doing == "its thread pool_0 does not finish: it stands in requests.api.post"
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 8
    idle = make.thread(
        (make.lib("queue.py", "get"), make.lib("concurrent/futures/thread.py", "_worker")),
        main=False, tid=4100, name="pool_0",
    )  # fmt: skip
    nobody = explain(still(make.stack("train.py", 8, "publish", RESULT), idle))
    assert (nobody.cause, nobody.certainty) == ("lock-wait", "likely")
    assert "future" in nobody.culprits[0].doing


def test_an_event_loop_in_which_no_task_goes_on_is_a_blocked_call() -> None:
    main = make.stack("train.py", 8, "gather_scores", EVENT_LOOP)
    finding = explain(still(main, processes=make.process(Syscall("epoll_wait"))))
    assert (finding.cause, finding.certainty) == ("blocked-call", "likely")
    assert "event loop" in finding.culprits[0].doing
    assert "asyncio" in finding.fix[0]
    service = make.process(Syscall("epoll_wait"), sockets=("10.0.0.9:443",))
    assert "10.0.0.9:443" in explain(still(main, processes=service)).culprits[0].doing


def test_an_event_loop_that_waits_for_an_executor_is_explained_by_its_thread() -> None:
    task = (make.frame("train.py", 3, "crunch"), make.lib("concurrent/futures/thread.py", "_WorkItem.run"))
    beside = make.thread(task, main=False, tid=4100, name="asyncio_0")
    other = make.stack("monitor.py", 8, "watch", main=False, tid=4101, name="monitor")
    main = make.stack("train.py", 8, "gather_scores", EVENT_LOOP)
    finding = explain(still(main, other, beside, processes=make.process(Syscall("epoll_wait"))))
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.function == "crunch"


def test_a_statement_that_sqlite_holds_back_waits_for_the_databases_lock() -> None:
    text = "import sqlite3\n\ndef store(db, row):\n    db.execute('insert into runs values (?)', row)\n"
    main = make.thread((make.frame("train.py", 4, "store"),))
    asleep = make.process("clock_nanosleep", sleeps=5, main_cpu=0.0003)
    finding = explain(still(main, processes=asleep), source={"train.py": text})
    assert (finding.cause, finding.certainty) == ("lock-wait", "likely")
    assert "insert into runs" in finding.culprits[0].doing
    pause = text.replace("db.execute('insert into runs values (?)', row)", "time.sleep(600)")
    assert explain(still(main, processes=asleep), source={"train.py": pause}).cause == "blocked-call"


def test_a_databases_server_is_named_by_its_address() -> None:
    inner = [make.lib("psycopg/waiting.py", "wait"), make.lib("psycopg/connection.py", "Connection.execute")]
    call = Syscall("poll", None, "tcp 10.0.0.2:40000 -> 10.0.0.7:5432")
    finding = explain(still(make.stack("train.py", 8, "store", inner), processes=make.process(call)))
    assert finding.cause == "blocked-call"
    assert "10.0.0.7:5432" in finding.culprits[0].doing


@pytest.mark.parametrize("path", ["portalocker/utils.py", "filelock/_api.py", "lockfile/linklockfile.py"])
def test_any_package_about_lock_files_is_known_by_its_name(path: str) -> None:
    inner = [make.lib(path, "Lock.acquire")]
    finding = explain(still(make.stack("train.py", 4, "build", inner), processes=make.process("clock_nanosleep")))
    assert (finding.cause, finding.certainty) == ("lock-wait", "likely")


def test_a_child_that_writes_into_a_full_pipe_is_said_to() -> None:
    child = make.child(77, "ffmpeg -i a.mp4", processes=make.process(Syscall("write", 1, "pipe")))
    main = make.stack("train.py", 8, "convert", [make.lib("subprocess.py", "Popen.wait")])
    finding = explain(still(main, children=child, processes=make.process(Syscall("wait4", None, "process 77"))))
    assert "which is writing to a pipe that nobody reads" in finding.culprits[0].doing
    assert any("communicate()" in advice for advice in finding.fix)
