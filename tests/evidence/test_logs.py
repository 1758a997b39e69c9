"""Logs of many ranks in one file: whose line, when, what matters, in bounded memory."""

from __future__ import annotations

import io
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.evidence.readers.gather import gather
from rankscope.evidence.readers.log import LogReader, ReadLogs
from rankscope.evidence.readers.log_lines import inner_rank, time_of
from rankscope.evidence.readers.log_names import rank_of_log
from searching import searched

NEAR = time.mktime((2026, 11, 15, 12, 0, 0, 0, 0, -1))

CATALOGUE = """\
[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=6)
[rank0]: Timeout at NCCL work: 4, last enqueued NCCL work: 7, last completed NCCL work: 3.
[rank0]: failure detected by watchdog at work sequence id: 4 PG status: last enqueued work: 7, last completed work: 3
[rank0]: OpType=ALLREDUCE, NumelIn=1, NumelOut=1
[rank0]: Received a dump signal due to a collective timeout from  rank 6
[rank0]: Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels
[rank0]: To avoid data inconsistency, we are taking the entire process down.
[rank0]: ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress
[rank0]: Heartbeat monitor timed out!
[rank0]: Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early)
[rank0]: recvValue failed on SocketImpl(fd=4): Failed to recv, got 0 bytes. Connection was likely closed.
[rank0]: retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket
[rank0]: Waiting in store based barrier to initialize process group for rank: 2, key: k (world_size=8, worker_count=7)
[rank0]: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).
[rank0]: The IPv6 network addresses of (host, 1) cannot be retrieved (gai error: -2 - Name or service not known)
[rank0]: The client socket cannot be initialized (errno: 97 - Address family not supported by protocol).
[rank0]: The client socket has timed out after 1800s while trying to connect to (host, 29500).
[rank0]: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 2000
[rank0]: using GPU 0 to perform barrier as devices used by this process are currently unknown.
[rank0]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library. NCCL error
[rank0]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
[rank0]: NCCL WARN Call to posix_fallocate failed : No space left on device
[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
[rank0]: NCCL WARN Cuda failure 710 'device-side assert triggered'
[rank0]: NCCL INFO [Service thread] Connection closed by localRank 2
[rank0]: NET/IB : Got completion from peer 10.0.0.2 with status=12 opcode=0 len=0 vendor err 129
[rank0]: NCCL WARN Call to connect timeout : Connection refused
[rank0]: NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 39.
[rank0]: NET/IB : collective mismatch error local size 4 remote 8
[rank0]: NCCL communicator was aborted on rank 1. Original reason for failure was: x
[rank0]: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(
[rank0]: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms
[rank0]: successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0
[rank0]: gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:3210
[rank0]: gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete
[rank0]: Application timeout caused pair closure
[rank0]: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error
[rank0]: [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 194478720 vs 4
[rank0]: Expected to have finished reduction in the prior iteration before starting a new one. RuntimeError
[rank0]: DDP expects same model across all ranks, but Rank 0 has 161 params, while rank 1 has inconsistent 0 params.
[rank0]: failed (exitcode: -9) local_rank: 0 (pid: 438) of binary: /usr/bin/python
[rank0]: Sending process 270 closing signal SIGTERM
[rank0]: process group has NOT been destroyed before we destruct ProcessGroupNCCL
[rank0]: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that workers are out of shared memory.
[rank0]: DataLoader worker (pid(s) 5) exited unexpectedly
[rank0]: received 0 items of ancdata
[rank0]: Cannot re-initialize CUDA in forked subprocess
[rank0]: huggingface/tokenizers: The current process just got forked, after parallelism has already been used.
[rank0]: kernel: Out of memory: Kill process 438 (python) score 900 or sacrifice child
[rank0]: kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus
[rank0]: CUDA out of memory. Tried to allocate 2.00 GiB
[rank0]: OSError: [Errno 37] No locks available
[rank0]: Waited on lock file "/c/lock" for 60 seconds.
[rank0]: 429 Client Error: Too Many Requests for url: https://huggingface.co/x
[rank0]: No available shared memory broadcast block found in 60 seconds.
[rank0]: Fatal error: gradients are inconsistent between workers
[rank0]: Culprit rank 22; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes:
[rank0]: No backend type associated with device type cpu
[rank0]: compute method of metric Mean was called before the update method
"""


def read(text: str | bytes, rank: int | None = None) -> ReadLogs:
    reader = LogReader()
    reader.read(io.BytesIO(text.encode() if isinstance(text, str) else text), "train.log", rank, NEAR)
    return reader.finish()


def test_every_message_of_the_catalogue_is_kept() -> None:
    kept = {line.text for line in read(CATALOGUE).ranks[0].notable}
    assert [line for line in CATALOGUE.splitlines() if line not in kept] == []


@pytest.mark.parametrize(
    "form",
    ["[rank{}]: hello", "R{}: hello", "GPU{}: hello", "[default{}]: hello", "[1,{}]<stdout>:hello", "{}: hello"],
)
def test_ranks_mixed_in_one_file_are_told_by_their_prefixes(form: str) -> None:
    lines = [form.format(rank) for rank in (0, 1, 2, 1, 0, 1)]
    logs = read("\n".join(lines))
    assert {rank: log.lines for rank, log in logs.ranks.items()} == {0: 2, 1: 3, 2: 1}
    assert logs.ranks[2].tail == (form.format(2),)


def test_a_line_that_was_shown_once_for_several_ranks_is_a_line_of_each() -> None:
    logs = read("R0-3:hello\nR1,3:again\nR0:last of 0\nR0-999999:nothing of ours\n")
    assert {rank: log.lines for rank, log in logs.ranks.items()} == {0: 2, 1: 2, 2: 1, 3: 2}
    assert logs.ranks[3].tail == ("R3:hello", "R3:again")


def test_a_number_and_a_colon_now_and_then_is_no_rank() -> None:
    logs = read("starting\n12: a point of a list\nmore\nand more\nthe end\n")
    assert logs.ranks == {}
    assert logs.others is not None
    assert logs.others.lines == 5


def test_last_sign_of_life_is_the_time_of_the_last_line_or_of_one_above_it() -> None:
    logs = read("[rank0]: 2026-11-15 02:00:00 a\n[rank1]: 2026-11-15 02:00:05 b\n[rank0]: 2026-11-15 02:09:00 c\n")
    assert logs.ranks[0].last_at is not None
    assert logs.ranks[1].last_at is not None
    assert logs.ranks[0].last_at - logs.ranks[1].last_at == 535


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-15 02:12:33,250 INFO x",
        "[2026/11/15 02:12:33.250] x",
        "2026-11-15T02:12:33.250 x",
        "[rank0]:[E1115 02:12:33.250000 ProcessGroupNCCL.cpp:1] x",
        "[02:12:33.250] x",
    ],
)
def test_times_are_read_in_the_forms_of_loggers(line: str) -> None:
    assert time_of(line, NEAR) == time.mktime((2026, 11, 15, 2, 12, 33, 0, 0, -1)) + 0.25


def test_a_zone_in_a_time_counts() -> None:
    assert time_of("2026-11-15T02:12:33Z", NEAR) == 1_794_708_753
    assert time_of("2026-11-15T03:12:33+01:00", NEAR) == 1_794_708_753


@pytest.mark.parametrize("line", ["9999-99-99 99:99:99", "no time", "E9915 02:12:33.1", ""])
def test_what_is_no_time_gives_none(line: str) -> None:
    assert time_of(line, NEAR) is None


def test_rank_named_by_torch_inside_a_line() -> None:
    assert inner_rank(b"[E1115 02:12:33 x.cpp:6] [PG ID 0 PG GUID 0(default_pg) Rank 3] Timeout") == 3
    assert inner_rank(b"Connection closed by rank 3") is None


TRACEBACK = """\
[rank1]: Traceback (most recent call last):
[rank0]: still here
[rank1]:   File "/home/me/train.py", line 7, in load
[rank1]:     read(path)
[rank1]: OSError: [Errno 28] No space left on device
"""


def test_a_traceback_between_lines_of_other_ranks_belongs_to_its_rank() -> None:
    logs = read(TRACEBACK)
    assert [(error.type, error.frames[0].line) for error in logs.ranks[1].exceptions] == [("OSError", 7)]
    assert logs.ranks[0].exceptions == ()


def test_a_traceback_after_which_the_rank_went_on_did_not_end_it() -> None:
    on = "".join(f"[rank1]: step {number}\n" for number in range(200))
    assert read(TRACEBACK + on).ranks[1].exceptions == ()


def test_torchruns_table_tells_exit_codes_and_whom_it_stopped_itself() -> None:
    logs = read(
        "W1115 02:00:00.0 torch/api.py:1] Sending process 11 closing signal SIGTERM\n"
        "Failures:\n[1]:\n  time      : 2026-11-15_02:00:01\n  host      : a\n  rank      : 0 (local_rank: 0)\n"
        "  exitcode  : -15 (pid: 11)  (SIGTERM)\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-15_02:00:00\n  host      : a\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 12)\n"
    )
    assert {rank: (end[0].code, end[0].by_launcher, end[1]) for rank, end in logs.ends.items()} == {
        0: (-15, True, 11),
        1: (-9, False, 12),
    }


def test_srun_and_mpirun_tell_how_ranks_ended() -> None:
    logs = read(
        "srun: error: node7: tasks 2-3: Exited with exit code 4\nsrun: error: node7: task 5: Killed\n"
        "mpirun noticed that process rank 6 with PID 99 on node n1 exited on signal 11 (Segmentation fault).\n"
    )
    assert {rank: end[0].code for rank, end in logs.ends.items()} == {2: 4, 3: 4, 5: -9, 6: -11}


def test_bytes_that_are_no_utf8_are_read_as_well_as_they_can() -> None:
    logs = read(b"[rank0]: caf\xe9 error \xff\xfe\n[rank1]: \x00\x00 fail\n")
    assert "caf" in logs.ranks[0].notable[0].text
    assert set(logs.ranks) == {0, 1}


def test_secrets_in_a_log_are_masked() -> None:
    (line,) = read("[rank0]: error with password=hunter2hunter2\n").ranks[0].notable
    assert "hunter2" not in line.text


class Endless(io.RawIOBase):
    """A long log that is never in memory as a whole."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = pieces

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        return next(self.pieces, b"")


def test_a_log_of_any_size_is_read_in_bounded_memory_and_its_messages_are_found() -> None:
    line = b"[rank%d]: 2026-11-15 02:00:00 step 17 loss 2.31 " + b"." * 4000 + b"\n"
    filler = b"".join(line % rank for rank in range(4)) * 60
    middle = b"[rank2]: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    pieces = iter([filler] * 20 + [middle] + [filler] * 20)
    reader = LogReader()
    tracemalloc.start()
    try:
        reader.read(Endless(pieces), "huge.log", None, NEAR)  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    logs = reader.finish()
    assert logs.ranks[0].lines == 40 * 60
    assert any("CUDA out of memory" in found.text for found in logs.ranks[2].notable)
    assert peak < 30 << 20


def test_a_line_without_an_end_takes_no_memory() -> None:
    reader = LogReader()
    reader.read(Endless(iter([b"error " * 500_000] * 6)), "huge.log", None, NEAR)  # type: ignore[arg-type]
    others = reader.finish().others
    assert others is not None
    assert all(len(line.text) < 5000 for line in others.notable)


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("logs/attempt_0/3/stderr.log", 3),
        ("logs/rank_12.log", 12),
        ("worker-4.txt", 4),
        ("rank7/out.log", 7),
        ("stderr.5", 5),
        ("slurm-48213.out", None),
        ("train.log", None),
        ("2026-11-15.log", None),
    ],
)
def test_whose_file_a_log_is_by_its_place(path: str, rank: int | None) -> None:
    assert rank_of_log(path) == rank


@searched(200)
@given(st.lists(st.sampled_from(CATALOGUE.encode().splitlines()) | st.binary(max_size=80), max_size=20))
def test_any_bytes_are_a_log(lines: list[bytes]) -> None:
    logs = read(b"\n".join(lines))
    assert sum(log.lines for log in logs.ranks.values()) + (logs.others.lines if logs.others else 0) >= 0


def test_what_a_rank_wrote_last_is_told_in_its_order_with_lines_that_came_again(tmp_path: Path) -> None:
    log = [
        "CUDA error: too early to be among the last",
        *(f"step {number}" for number in range(60)),
        "retrying",
        "retrying",
        "Traceback (most recent call last):",
        '  File "/x/train.py", line 3, in main',
        "    step()",
        "ValueError: x",
    ]
    told = told_by_rank_0(log, tmp_path)
    assert told == [log[0], *log[-40:]]


def test_the_stack_of_a_fatal_error_stands_where_it_was_written(tmp_path: Path) -> None:
    log = [
        "an error at first",
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f (most recent call first):",
        '  File "/x/train.py", line 3 in main',
        "an error afterwards",
        *(f"step {number}" for number in range(400)),
    ]
    told = told_by_rank_0(log, tmp_path)
    assert told[:4] == log[:4]
    assert told[-40:] == log[-40:]


def told_by_rank_0(lines: list[str], folder: Path) -> list[str]:
    path = folder / "rank0.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    (rank,) = gather([str(path)]).ranks
    return list(rank.error_tail)
