"""Whatever is seen of a rank, the standing rules give one finding about it and never call it proven."""

from __future__ import annotations

import factories as make
from hypothesis import given
from hypothesis import strategies as st
from in_words import in_words
from msgspec.structs import replace

from rankscope.diagnosis.rules.standing.readings import explain_standing
from rankscope.evidence.model import FileLock, RankEvidence, Syscall

LOADER = make.lib("torch/utils/data/dataloader.py", "_next_data")
TCP = "tcp 127.0.0.1:5000 -> 127.0.0.1:9000"

FRAMES = st.sampled_from(
    [
        make.frame("train.py", 3, "f"), make.native("sem_wait"), make.lib("threading.py", "wait"), LOADER,
        make.lib("threading.py", "_shutdown"), make.lib("threading.py", "join"), make.lib("subprocess.py", "_wait"),
        make.lib("filelock/_api.py", "acquire"), make.lib("multiprocessing/util.py", "_exit_function"),
    ]
)  # fmt: skip
SYSCALLS = st.none() | st.builds(
    Syscall,
    st.sampled_from(["recvfrom", "poll", "futex", "flock", "fcntl", "wait4", "openat", "read", "syscall 9", "ioctl"]),
    st.none() | st.integers(0, 9),
    st.none()
    | st.sampled_from([TCP, "pipe", "/x", "unix socket", "process 5", "process 60", "epoll of pipe", "weird"]),
)
PROCESSES = st.just(()) | st.builds(
    make.process,
    SYSCALLS,
    cpu=st.sampled_from([0.0, 0.3]),
    state=st.sampled_from("RSDTtZ"),
    wchan=st.none() | st.sampled_from(["futex_wait_queue", "nfs_wait", "wait_for_partner"]),
    waits_for_lock=st.none() | st.builds(FileLock, st.just("/l"), st.just("flock"), st.none() | st.integers(1, 9)),
)
STACKS = st.just(()) | st.builds(
    make.samples,
    st.builds(make.thread, st.lists(FRAMES, max_size=5), gil=st.booleans()),
    st.builds(make.thread, st.lists(FRAMES, max_size=3), main=st.just(False), tid=st.just(7)),
    times=st.integers(1, 3),
)
CHILDREN = st.sampled_from(
    [(), (make.idle_worker(60),), (make.worker(5, make.frame("d.py", 1, "g")),), (make.child(5, "x"),)]
)
RANKS = st.builds(
    make.rank,
    st.just(2),
    processes=PROCESSES,
    stacks=STACKS,
    children=CHILDREN,
    still_for_s=st.none() | st.floats(0, 100),
    progress=st.none() | st.builds(make.progress, world=st.integers(0, 2), finalizing=st.booleans()),
    missing=st.sampled_from([{}, {"listener": "the interpreter lock may be held"}]),
)


@given(RANKS)
def test_a_rank_that_does_not_move_past_the_threshold_is_a_likely_hang(
    rank: RankEvidence,
) -> None:
    still = replace(rank, still_for_s=20.0, processes=tuple(replace(each, cpu_s=5.0) for each in rank.processes))
    finding = explain_standing(still, make.evidence(still, stall_after_s=10.0), (0, 1))
    assert finding.outcome == "hang"
    assert finding.certainty == "likely" or finding.cause == "thread-alive"  # which asks for a thread to name


@given(RANKS, st.sets(st.integers(0, 4)).map(tuple), st.none() | st.just(10.0))
def test_any_evidence_gives_a_finding_about_that_rank(
    rank: RankEvidence, waiters: tuple[int, ...], limit: float | None
) -> None:
    seen = make.evidence(rank, stall_after_s=limit)
    finding = in_words(explain_standing(rank, seen, waiters))
    assert all(culprit.rank == 2 for culprit in finding.culprits)
    assert finding.culprits
    assert finding.fix
    assert finding.summary
    assert finding.certainty != "proven"
    if limit is None and finding.outcome == "hang":
        assert finding.certainty == "possible"
