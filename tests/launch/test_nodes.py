"""A job on several machines: one verdict, the same on every node, also when a node is the culprit."""

from __future__ import annotations

import functools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import COMMAND, Rankscope, Started, kill, wait_until
from namespaces import Host, hosts, why_not
from rankscope.diagnosis.verdict import Verdict
from rankscope.door import Door, knock
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
    RankEvidence,
    StackSample,
    Syscall,
    Thread,
)
from rankscope.launch.events import Ruled, StoppedElsewhere, TellNodes
from rankscope.launch.nodes.channel import Channel, ChannelLost, serves
from rankscope.launch.nodes.exchange import Exchange
from rankscope.launch.nodes.opening import open_exchange
from rankscope.launch.nodes.parcel import FULL_NODES, LEAST, NEWEST, Packed, merge, pack, travelling, unpack
from rankscope.launch.nodes.parts import Library
from rankscope.launch.nodes.words import Hello
from rankscope.report.conclude import conclude

ZOO = Path(__file__).resolve().parents[2] / "zoo"
sys.path.insert(0, str(ZOO))

from expectation import accepted_lines, load_case  # noqa: E402

STEPS = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(100000):
    dist.all_reduce(torch.ones(10))
    print("step", step, flush=True)
    time.sleep(0.1)
"""


ZOO_CASES = ["replica_groups", "eval_batchnorm", "loss_report", "label_mapping", "batch_check", "metric_learning"]
VERDICT_LIMIT_S = 15.0
"""From the fault to the printed verdict."""


class Clock:
    """Seconds since the fault, less those in which the machine did not run us at all: nobody is on time then."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._lost = 0.0
        self._over = threading.Event()
        threading.Thread(target=self._tick, daemon=True).start()

    def _tick(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.05):
            now = time.monotonic()
            self._lost += max(0.0, now - before - 0.1)
            before = now

    def stop(self) -> float:
        self._over.set()
        return time.monotonic() - self._begun - self._lost


@pytest.fixture
def machines() -> Iterator[list[Host]]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with hosts(2) as made:
        yield made


def start(
    rankscope: Rankscope,
    machines: list[Host],
    ranks: list[int],
    *words: object,
    env: dict[str, str] | None = None,
    share_folder: bool = True,
) -> list[Started]:
    """`rankscope run` on every machine, with so many ranks each."""
    started = []
    for number, (host, count) in enumerate(zip(machines, ranks, strict=True)):
        options = ["--nnodes", len(machines), "--node-rank", number, "--nproc-per-node", count]
        options += ["--master-addr", machines[0].address, "--master-port", 29511]
        options += ["--run-dir", rankscope.folder / ("run" if share_folder else f"run-{number}")]
        command = host.command(*COMMAND, "run", *options, *words)
        started.append(rankscope.command(*command, env={**(env or {}), "GLOO_SOCKET_IFNAME": "eth0"}))
    return started


def verdict_of(rankscope: Rankscope, host: Host) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((rankscope.folder / "run" / host.name / "verdict.json").read_bytes())
    return content


def blamed(verdict: dict[str, Any]) -> set[tuple[str, int]]:
    return {(culprit["host"], culprit["rank"]) for culprit in verdict["culprits"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO_CASES)
def test_zoo_case_over_two_nodes_gets_the_same_verdict_on_both(
    rankscope: Rankscope, machines: list[Host], name: str
) -> None:
    case = load_case(name)
    first = (case.expect.nproc + 1) // 2
    arguments = [word.replace("{tmp}", str(rankscope.folder)) for word in case.expect.args]
    words = [*case.expect.options, case.folder / "train.py", *arguments]
    nodes = start(rankscope, machines, [first, case.expect.nproc - first], *words, env=dict(case.expect.env))
    codes = [node.wait(150.0).code for node in nodes]
    wanted = case.expect.exit_code if isinstance(case.expect.exit_code, list) else [case.expect.exit_code]
    assert all(code in wanted for code in codes), [node.err.decode(errors="replace")[-2000:] for node in nodes]
    lines = {line for found in accepted_lines(case).values() for line in found}
    for host in machines:
        verdict = verdict_of(rankscope, host)
        assert (verdict["outcome"], verdict["cause"]) == (case.expect.outcome, case.expect.cause), verdict
        assert blamed(verdict) == {(machines[rank >= first].name, rank) for rank in case.expect.ranks}
        for culprit in verdict["culprits"]:
            assert not lines or (Path(culprit["where"]["file"]).name == case.expect.file)
            assert not lines or culprit["where"]["line"] in lines
        assert verdict["world_size"] == case.expect.nproc


@pytest.mark.slow
def test_without_a_common_key_the_speaking_node_diagnoses_and_both_end(
    rankscope: Rankscope, machines: list[Host]
) -> None:
    """Each node has a folder, and so a key, of its own."""
    case = load_case("loss_report")
    nodes = start(rankscope, machines, [1, case.expect.nproc - 1], case.folder / "train.py", share_folder=False)
    codes = [node.wait(150.0).code for node in nodes]
    assert all(codes), codes
    said = json.loads((rankscope.folder / "run-0" / machines[0].name / "verdict.json").read_bytes())
    assert (said["outcome"], said["cause"]) == (case.expect.outcome, case.expect.cause), said
    assert b"says (not verified" in nodes[1].err
    print([node.err.decode()[-1500:] for node in nodes])


@pytest.mark.slow
def test_a_node_that_waits_for_the_others_to_end_can_be_stopped(rankscope: Rankscope, machines: list[Host]) -> None:
    """Its own ranks have ended well; the store in which it waits listens to no signal."""
    script = rankscope.script(
        """
import os, time
if os.environ["RANK"] == "1":
    time.sleep(60)
print("ended", os.environ["RANK"], flush=True)
"""
    )
    nodes = start(rankscope, machines, [1, 1], script)
    nodes[0].shows("ended 0")
    time.sleep(3)
    begun = time.monotonic()
    nodes[0].process.send_signal(signal.SIGTERM)
    assert nodes[0].wait(30.0).code == 143
    assert time.monotonic() - begun < 8
    nodes[1].process.send_signal(signal.SIGTERM)
    nodes[1].wait(30.0)


@pytest.mark.slow
@pytest.mark.parametrize("blow", ["kill", "terminate"])
def test_a_node_does_not_wait_for_the_end_of_one_that_was_struck(
    rankscope: Rankscope, machines: list[Host], blow: str
) -> None:
    script = rankscope.script(
        """
import os, time
if os.environ["RANK"] == "1":
    time.sleep(60)
print("ended", os.environ["RANK"], flush=True)
"""
    )
    nodes = start(rankscope, machines, [1, 1], script)
    nodes[0].shows("ended 0")
    time.sleep(2)
    clock = Clock()
    if blow == "kill":
        kill_node(machines[1])
    else:
        nodes[1].process.send_signal(signal.SIGTERM)
    ended = nodes[0].wait(60.0)
    assert clock.stop() < VERDICT_LIMIT_S
    verdict = verdict_of(rankscope, machines[0])
    if blow == "kill":
        assert (ended.code, verdict["outcome"], verdict["cause"]) == (75, "crash", "killed")
        assert blamed(verdict) == {(machines[1].name, 1)}
    else:
        assert (ended.code, verdict["outcome"]) == (143, "interrupted")
        assert b"the signal came to the launcher on" in ended.err


def pids_on(host: Host) -> list[int]:
    told = subprocess.run(["ip", "netns", "pids", host.namespace], capture_output=True, text=True, check=True)
    return [int(pid) for pid in told.stdout.split()]


def kill_node(host: Host) -> None:
    for pid in pids_on(host):
        kill(pid, signal.SIGKILL)


def freeze_node(host: Host) -> None:
    for pid in pids_on(host):
        kill(pid, signal.SIGSTOP)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "cause", "word", "lost"),
    [
        (kill_node, "killed", "is gone", 0),
        (kill_node, "killed", "is gone", 1),
        (freeze_node, "frozen-process", "is frozen", 0),
        (freeze_node, "frozen-process", "is frozen", 1),
        (Host.pull_the_cable, "address-unreachable", "is out of reach", 1),
    ],
    ids=["node with the store killed", "killed", "node with the store frozen", "frozen", "cut off"],
)
def test_lost_node_is_the_culprit_by_host_and_ranks(
    rankscope: Rankscope, machines: list[Host], harm: Callable[[Host], None], cause: str, word: str, lost: int
) -> None:
    nodes = start(rankscope, machines, [2, 2], rankscope.script(STEPS))
    left = 1 - lost
    nodes[left].shows("step 5", timeout_s=120.0)
    clock = Clock()
    harm(machines[lost])
    nodes[left].shows(f"the node {machines[lost].name} (ranks {2 * lost}, {2 * lost + 1}) {word}", timeout_s=60.0)
    seconds = clock.stop()
    print(f"{seconds:.1f} s from the fault to the verdict")
    assert seconds <= VERDICT_LIMIT_S
    assert wait_until((rankscope.folder / "run" / machines[left].name / "verdict.json").exists, 10.0)
    verdict = verdict_of(rankscope, machines[left])
    assert verdict["cause"] == cause
    assert blamed(verdict) == {(machines[lost].name, 2 * lost), (machines[lost].name, 2 * lost + 1)}
    if harm is Host.pull_the_cable:
        # The node itself knows it too.
        nodes[lost].shows(f"the node {machines[lost].name} (ranks 2, 3) is cut off", timeout_s=60.0)


def rank(number: int, host: str, **more: Any) -> RankEvidence:
    return RankEvidence(rank=number, local_rank=number, host=host, pid=number + 10, started_at=1000.0, **more)


def evidence(*ranks: RankEvidence, world: int = 4, **more: Any) -> Evidence:
    return Evidence(1, 1100.0, 1000.0, "still", world, ranks, **more)


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


def progress(changed_at: float) -> Progress:
    return Progress("step", 1000.0, 1, 1, changed_at, 2, 0, (), ())


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


def test_door_tells_alive_from_frozen_gone_and_unreachable() -> None:
    door = Door("127.0.0.1")
    assert knock("127.0.0.1", door.port) == "alive"
    door.close()
    assert knock("127.0.0.1", door.port) == "gone"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert knock("127.0.0.1", silent.getsockname()[1], 0.2) == "frozen"
        assert serves(silent.getsockname()[1])
    assert not serves(1)


def test_many_lost_nodes_are_asked_at_the_same_time() -> None:
    """Each of them answers nothing for as long as a knock takes; together they take no longer."""
    from rankscope.launch.nodes import roster as module

    team = Team(3)
    knocking = threading.Barrier(2, timeout=30.0)

    def slow(_address: str, _port: int) -> str:
        knocking.wait()  # passes only when both doors are knocked at in the same moment
        return "unreachable"

    try:
        assert wait_until(lambda: len(team.nodes[1].roster.hellos) == 3, 30.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "knock", slow)
            seen = team.nodes[1].gather_alone("still")
        assert [node.state for node in seen.nodes] == ["unreachable", "answered", "unreachable"]
    finally:
        team.close()


def test_nobody_waits_for_the_verdict_of_a_speaker_that_is_gone() -> None:
    """Found by chaos: its launcher was stopped at once, without a goodbye."""
    team = Team(2)  # the second speaks
    try:
        assert wait_until(lambda: len(team.nodes[0].roster.hellos) == 2, 30.0)
        assert team.nodes[0].gather("failure") is None  # the speaker is asked
        team.nodes[1]._stop.set()
        team.nodes[1]._door.close()
        team.nodes[0].roster.heard[1] = time.monotonic() - 60.0
        begun = time.monotonic()
        assert not team.nodes[0].await_ruling(threading.Event())
        assert time.monotonic() - begun < 8.0
    finally:
        team.close()


@pytest.mark.parametrize("done", [False, True])
def test_a_launcher_that_left_without_a_goodbye_is_missed_unless_its_ranks_had_ended_well(done: bool) -> None:
    """Found by chaos: the other launcher waited five minutes for it to end."""
    team = Team(2)
    left, speaker = team.nodes
    try:
        assert wait_until(lambda: speaker.beating() == {0}, 30.0)
        left.tell_done(done)
        number = speaker.roster.beats[0].number
        assert wait_until(lambda: speaker.roster.beats[0].number > number + 1, 30.0)
        assert not speaker.somebody_is_gone()
        left._stop.set()
        left._thread.join()
        left._door.close()
        assert not speaker.all_left()
        assert wait_until(lambda: bool(left_for(speaker, 60.0) and (speaker.somebody_is_gone() or done)), 30.0)
        assert speaker.somebody_is_gone() is not done
        seen = speaker.gather("still")
        assert seen is not None
        assert [node.state for node in seen.nodes] == ["ended" if done else "gone", "answered"]
        assert speaker.all_left()
    finally:
        team.close()


def left_for(exchange: Exchange, seconds: float) -> bool:
    """As if the first node had been silent for so long."""
    exchange.roster.heard[0] = time.monotonic() - seconds
    return True


def test_the_speaker_hears_which_signal_has_stopped_another_node() -> None:
    """Found by chaos: the ranks of the others waited on for those of a node that was interrupted."""
    team = Team(3)
    try:
        assert wait_until(lambda: team.nodes[1].beating() == {0, 2}, 30.0)
        before = time.time()
        team.nodes[0].tell_signal(signal.SIGINT)
        assert wait_until(lambda: bool(team.stops[1]), 30.0), "before its ranks have ended"
        team.nodes[0].close("ended", signal.SIGINT)
        team.nodes[2].tell_done(True)
        team.nodes[2].close("ended", signal.SIGTERM)
        assert wait_until(team.nodes[1].all_left, 30.0)
        (stopped,) = team.stops[1]
        assert (stopped.host, stopped.signal) == ("node-0", signal.SIGINT)
        assert before - 1.0 < stopped.at < time.time(), "by the speaker's clock"
        assert not team.nodes[1].somebody_is_gone()
    finally:
        team.close()


def test_a_node_is_known_to_the_others_before_its_first_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by chaos: its launcher was killed before the thread that speaks had come to its first word."""
    monkeypatch.setattr(Exchange, "start", lambda _self: None)
    team = Team(2)
    try:
        team.nodes[1]._turn()
        assert team.nodes[1].roster.hellos[0] == team.nodes[0].own
        team.nodes[0]._door.close()
        assert not team.nodes[1].somebody_is_gone()
        assert left_for(team.nodes[1], 60.0)
        assert team.nodes[1].somebody_is_gone()
    finally:
        team.close()


def test_a_node_with_the_store_that_was_never_met_is_known_by_its_store() -> None:
    """Found by chaos: it was killed the moment its ranks had started."""
    refused = Door("127.0.0.1")
    refused.close()

    def nobody(_limit: float) -> None:
        raise ConnectionRefusedError

    channel = Channel(nobody, "rankscope/", b"known to all of them", ("127.0.0.1", refused.port))
    own = Hello(1, "node-1", "127.0.0.1", 1, (2, 3), 1, holds_store=False)
    door = Door("127.0.0.1")
    here = evidence(*(rank(number, "node-1", progress=progress(1010.0)) for number in (2, 3)))
    exchange = Exchange(channel, own, 2, door, lambda _trigger: here, lambda _ruled: None, lambda _note: None)
    exchange.start()
    try:
        assert wait_until(lambda: channel.lost is not None, 10.0)
        assert not exchange.somebody_is_gone()
        exchange._answered_at -= 12.0
        assert exchange.somebody_is_gone()
        seen = exchange.gather("still")
        assert seen is not None
        lost = seen.nodes[-1]
        assert (lost.host, lost.ranks, lost.state, lost.pid) == ("127.0.0.1", (0, 1), "gone", None)
        verdict = conclude(seen)
    finally:
        exchange.close("ended")
    assert verdict.headline.startswith("the node 127.0.0.1 (ranks 0, 1) is gone: its launcher was killed")
    assert verdict.because[0] == "127.0.0.1 refuses connections to its launcher: the process has ended"


@pytest.mark.parametrize("why", ["asked", "all left"])
def test_nobody_waits_for_the_end_of_launchers_that_will_not_come(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    from rankscope.launch import agent as module

    never = threading.Event()
    monkeypatch.setattr(LocalElasticAgent, "_exit_barrier", lambda _self: never.wait(60.0))
    agent = module.ScopeAgent.__new__(module.ScopeAgent)
    nodes = SimpleNamespace(all_left=lambda: why == "all left")
    vars(agent).update(
        _worker_group=SimpleNamespace(group_world_size=2),
        _job=SimpleNamespace(nodes=nodes),
        _asked="stop" if why == "asked" else None,
    )
    begun = time.monotonic()
    agent._exit_barrier()
    never.set()
    assert time.monotonic() - begun < 10.0


def test_a_store_that_never_answers_does_not_keep_a_launcher_from_ending() -> None:
    """Its node is cut off: the last word reaches nobody, and is not waited for."""
    never = threading.Event()

    def silent(_limit: float) -> None:
        never.wait()
        raise OSError

    channel = Channel(silent, "rankscope/", b"known to all of them")
    door = Door("127.0.0.1")
    own = Hello(0, "node-0", "127.0.0.1", door.port, (0,), 1, holds_store=False)
    exchange = Exchange(channel, own, 2, door, lambda _trigger: evidence(), lambda _ruled: None, lambda _note: None)
    exchange.start()
    begun = time.monotonic()
    exchange.close("ended")
    never.set()
    assert time.monotonic() - begun < 15  # of the thirty seconds that a first connection may take


class Team:
    """Launchers of one job in this process, over a real store, with made-up evidence."""

    def __init__(
        self,
        count: int,
        key: bytes | None = b"known to all of them",
        *,
        speaker: int = 1,
        store: Any = None,
        attempt: str = "mark",
        order: Sequence[int] | None = None,
        only_sealed: bool = False,
    ) -> None:
        from torch._C._distributed_c10d import TCPStore

        limit = timedelta(seconds=20)
        self.store: Any = store or TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
        self.rulings: dict[int, list[Ruled]] = {number: [] for number in range(count)}
        self.stops: dict[int, list[StoppedElsewhere]] = {number: [] for number in range(count)}
        self.notes: list[str] = []
        made: dict[int, Exchange] = {}
        for number in order or range(count):
            opened = open_exchange(
                self.store,
                node=number,
                nodes=count,
                host=f"node-{number}",
                ranks=(number,),
                attempt_key=attempt,
                collect=lambda _trigger, number=number: evidence(rank(number, f"node-{number}"), world=count),  # type: ignore[misc]
                hand_over=functools.partial(self.hear, number),
                note=self.notes.append,
                holds_store=number == speaker,
                key=key,
                only_sealed=only_sealed,
            )
            assert opened is not None
            made[number] = opened
        self.nodes = [made[number] for number in sorted(made)]

    def hear(self, number: int, event: Ruled | StoppedElsewhere) -> None:
        if isinstance(event, Ruled):
            self.rulings[number].append(event)
        else:
            self.stops[number].append(event)

    def close(self) -> None:
        closing = [threading.Thread(target=node.close, args=("ended",)) for node in self.nodes]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()


def test_a_node_that_dies_between_its_parts_and_its_parcel_costs_nobody_elses_evidence() -> None:
    from rankscope.launch.nodes import looks as module

    team = Team(3)
    try:
        assert wait_until(lambda: len(team.nodes[1].beating()) == 2, 30.0)
        dying = vars(team.nodes[2])["_channel"]
        say = dying.say

        def dies(key: str, word: bytes) -> None:
            if key.startswith("evidence/"):
                raise ChannelLost("its machine is gone")
            say(key, word)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dying, "say", dies)
            patch.setattr(module, "ANSWER_S", 2.0)
            seen = team.nodes[1].gather("still")
        assert seen is not None
        assert [found.rank for found in seen.ranks] == [0, 1]
        assert [found.state for found in seen.nodes] == ["answered", "answered", "silent"]
        again = team.nodes[1].gather("still")
        assert again is not None
        assert [found.rank for found in again.ranks] == [0, 1, 2]
    finally:
        team.close()
    assert team.notes == []


def test_one_look_brings_the_evidence_of_all_nodes_and_one_ruling_reaches_all() -> None:
    team = Team(3)
    try:
        assert wait_until(
            lambda: len(team.nodes[1].roster.hellos) == 3 and all(1 in node.roster.hellos for node in team.nodes), 30.0
        )
        assert [node.speaks for node in team.nodes] == [False, True, False]
        speaker = team.nodes[1]
        assert team.nodes[2].gather("failure") is None
        assert wait_until(lambda: speaker.look_wanted() == "failure", 30.0)
        seen = speaker.gather("failure")
        assert seen is not None
        assert [found.state for found in seen.nodes] == ["answered"] * 3
        assert [found.rank for found in seen.ranks] == [0, 1, 2]
        assert speaker.look_wanted() is None
        assert team.nodes[0].gather("non-finite") is None
        assert wait_until(lambda: speaker.look_wanted() == "non-finite", 30.0)
        assert speaker.gather("still") is not None
        assert speaker.look_wanted() == "non-finite"
        numbers = speaker.gather("non-finite")
        assert numbers is not None
        assert [found.rank for found in numbers.ranks] == [0, 1, 2]
        assert speaker.look_wanted() is None
        verdict = Verdict(1, "hang", "rank-left", "proven", (), (), "rank 2 left.", (), ())
        speaker.rule(TellNodes(verdict, stop=True, reason="signal", signal=15))
        assert wait_until(lambda: bool(team.rulings[0] and team.rulings[2]), 30.0)
        heard = Ruled(verdict, stop=True, reason="signal", signal=15, speaker="node-1")
        assert team.rulings == {number: [heard] * (number != 1) for number in range(3)}
    finally:
        team.close()
    assert team.notes == []
