"""What several nodes saw is one evidence, and what a lost node leaves behind is nobody else's fault."""

from __future__ import annotations

from typing import Any

import pytest
from teams import evidence, progress, rank

from rankscope.evidence.model import (
    Call,
    Collective,
    Evidence,
    Exit,
    Frame,
    NodeEvidence,
    ProcessSample,
    Progress,
    RaisedException,
    StackSample,
    Syscall,
    Thread,
)
from rankscope.launch.nodes.parcel import FULL_NODES, LEAST, NEWEST, Packed, merge, pack, travelling, unpack
from rankscope.launch.nodes.parts import Library
from rankscope.report.conclude import conclude


def opened(packed: Packed, library: Library | None = None) -> Evidence:
    """What a reader makes of it who finds all of its parts."""
    library = library or Library()
    parcel = unpack(packed.data)
    for name, kind in library.lacks(parcel).items():
        library.add(name, kind, packed.parts[name], 8)
    return library.open(parcel)


def test_evidence_survives_the_way_through_the_store_and_its_clock_is_set_right() -> None:
    seen = evidence(rank(2, "b", error_tail=("oops",)))
    assert opened(pack(seen)) == seen
    moved = opened(pack(seen, clock_off_s=50.0))
    assert (moved.collected_at, moved.started_at, moved.ranks[0].started_at) == (1050.0, 950.0, 950.0)
    assert opened(pack(seen, clock_off_s=0.4)) == seen


def call(number: int, left: float | None) -> Call:
    return Call(number, "all_reduce", "0", number + 1, 1, 0, 1000.0 + number, left, False, 0, -1, 8, "float32", ())


def collective(number: int, done: bool) -> Collective:
    return Collective(number, "0", number + 1, 0, "all_reduce", "nccl", False, "scheduled", done, 1000.0 + number)


def test_many_nodes_send_less_each_and_never_leave_out_what_has_not_ended() -> None:
    assert (travelling(2), travelling(FULL_NODES), travelling(64), travelling(512)) == (NEWEST, NEWEST, 150, LEAST)
    made = 1000
    for waiting_since in (made, made - 10, made - 300, 5):
        calls = tuple(call(n, 2000.0) for n in range(made))
        entries = tuple(collective(n, n < waiting_since) for n in range(made))
        progress = Progress("step", 1000.0, 1, 1, 1000.0, 4, made, calls, ())
        seen = rank(2, "b", progress=progress, collectives=entries)
        came = opened(pack(evidence(seen), 0.0, LEAST)).ranks[0]
        assert came.progress is not None
        numbers = [entry.record_id for entry in came.collectives]
        assert numbers == list(range(numbers[0], made))
        assert [found.index for found in came.progress.calls] == numbers
        assert min(len(numbers), NEWEST) >= LEAST
        assert len(numbers) <= NEWEST
        assert numbers[0] <= max(waiting_since, made - NEWEST)
        assert len(numbers) == LEAST or waiting_since < made - 10


def test_evidence_of_all_nodes_is_one_evidence() -> None:
    nodes = (NodeEvidence("a", (0, 1), "answered"), NodeEvidence("b", (2, 3), "answered"))
    here = evidence(rank(0, "a"), rank(1, "a"), stall_after_s=30.0)
    there = evidence(rank(2, "b"), rank(3, "b"), stall_after_s=40.0)
    whole = merge(here, [there], nodes)
    assert [seen.rank for seen in whole.ranks] == [0, 1, 2, 3]
    assert (whole.stall_after_s, whole.nodes) == (40.0, nodes)


def test_slow_launcher_of_ranks_that_go_on_is_nobodys_fault() -> None:
    """Nobody waits for the ranks of the node that does not answer."""
    nodes = (NodeEvidence("a", (0,), "answered"), NodeEvidence("b", (1,), "frozen", 7, 9.0, "a"))
    assert conclude(evidence(rank(0, "a"), world=2, nodes=nodes)).outcome == "ok"


@pytest.mark.parametrize(("address", "blamed"), [("10.0.0.1", []), ("10.0.0.9", [1])])
def test_a_connection_of_the_ranks_own_to_a_lost_machine_is_no_call_outside_of_the_job(
    address: str, blamed: list[int]
) -> None:
    """Found by chaos: ranks that talk over sockets of their own, cut off from each other."""
    call = Syscall("recvfrom", 3, "tcp 10.0.0.2:43938 -> 10.0.0.1:36785")
    samples = tuple(ProcessSample(at, "S", 1.0, 10, 10, 1 << 20, syscall=call) for at in (99.0, 99.8))
    thread = Thread(7, "MainThread", True, (Frame("main", "/job/train.py", 29, True),))
    stacks = tuple(StackSample(at, (thread,), "py-spy") for at in (99.0, 99.8))
    waiting = rank(1, "node-1", processes=samples, stacks=stacks, still_for_s=34.0)
    lost = NodeEvidence("node-0", (0,), "unreachable", 41, 34.0, "node-1", True, address)
    here = NodeEvidence("node-1", (1,), "answered", 42, None, "node-1", True, "10.0.0.2")
    seen = evidence(waiting, world=2, nodes=(lost, here), speaker=False, stall_after_s=30.0)
    verdict = conclude(seen)
    assert verdict.outcome == "hang"
    assert [culprit.rank for culprit in verdict.culprits] == blamed
    assert verdict.cause == ("blocked-call" if blamed else "address-unreachable")


@pytest.mark.parametrize(
    ("state", "listens", "cause", "blamed"),
    [
        ("gone", "10.0.0.1", "killed", [1]),
        ("gone", "0.0.0.0", "killed", [1]),
        ("unreachable", "10.0.0.1", "address-unreachable", [1]),
        ("unreachable", "127.0.0.1", "blocked-call", [0]),
        ("answered", "10.0.0.1", "blocked-call", [0]),
    ],
)
def test_a_rank_that_waits_to_be_called_by_a_lost_machine_is_not_to_blame(
    state: str, listens: str, cause: str, blamed: list[int]
) -> None:
    """Found by chaos: the launcher of the other machine was killed before its rank had connected."""
    call = Syscall("accept4", 3, f"tcp {listens}:21107 listening")
    samples = tuple(ProcessSample(at, "S", 1.0, 10, 10, 1 << 20, syscall=call) for at in (99.0, 99.8))
    thread = Thread(7, "MainThread", True, (Frame("peer", "/job/train.py", 13, True),))
    stacks = tuple(StackSample(at, (thread,), "py-spy") for at in (99.0, 99.8))
    waiting = rank(0, "node-0", processes=samples, stacks=stacks, still_for_s=34.0)
    here = NodeEvidence("node-0", (0,), "answered", 41, None, "node-0", True, "10.0.0.1")
    other = NodeEvidence("node-1", (1,), state, 42, 5.0, "node-0", True, "10.0.0.2")
    verdict = conclude(evidence(waiting, world=2, nodes=(here, other), speaker=True, stall_after_s=30.0))
    assert [culprit.rank for culprit in verdict.culprits] == blamed
    assert verdict.cause == cause
    assert (verdict.certainty == "proven") == (state == "gone")


@pytest.mark.parametrize(
    ("more", "silent_s", "missed"),
    [
        ({"progress": progress(1080.0)}, 12.0, True),
        ({"progress": progress(1080.0)}, 5.0, False),  # it may be between two steps
        ({"progress": progress(1099.0)}, 12.0, False),  # it gets on without them
        ({"exit": Exit(0, 1097.0, by_launcher=False)}, 5.0, True),  # only its launcher is left, and waits
    ],
    ids=["tries again and again", "not for long", "gets on", "has ended well"],
)
def test_whoever_does_not_get_on_without_the_ranks_of_a_node_that_is_gone_misses_them(
    more: dict[str, Any], silent_s: float, missed: bool
) -> None:
    """Found by chaos: ranks that try to connect again and again never stand still."""
    here = NodeEvidence("node-0", (0,), "answered", 41, None, "node-0", True, "10.0.0.1")
    other = NodeEvidence("node-1", (1,), "gone", 42, silent_s, "node-0", True, "10.0.0.2")
    verdict = conclude(evidence(rank(0, "node-0", **more), world=2, nodes=(here, other), speaker=True))
    assert (verdict.cause, verdict.certainty) == (("killed", "proven") if missed else (None, "proven"))
    assert [(culprit.host, culprit.rank) for culprit in verdict.culprits] == ([("node-1", 1)] if missed else [])


@pytest.mark.parametrize(("state", "blamed"), [("gone", [0]), ("answered", [1])])
def test_a_connection_of_the_ranks_own_that_ended_with_its_machine_is_a_consequence(
    state: str, blamed: list[int]
) -> None:
    """Found by chaos: the other machine's launcher was stopped, and its rank with it."""
    frames = (Frame("main", "/job/train.py", 30, True),)
    error = RaisedException("ConnectionError", "rank 0 has closed its connection", 1099.0, frames, "hook")
    failed = rank(1, "node-1", exceptions=(error,), exit=Exit(1, 1099.2, by_launcher=False))
    other = NodeEvidence("node-0", (0,), state, 41, 1.0, "node-1", True, "10.0.0.1")
    here = NodeEvidence("node-1", (1,), "answered", 42, None, "node-1", True, "10.0.0.2")
    verdict = conclude(evidence(failed, world=2, nodes=(other, here), speaker=False))
    assert verdict.outcome == "crash"
    assert [culprit.rank for culprit in verdict.culprits] == blamed
    assert verdict.cause == ("killed" if state == "gone" else "exception")
