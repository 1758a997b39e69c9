"""A job on several machines: one verdict, the same on every node, also when a node is the culprit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import COMMAND, Rankscope, Started, kill, wait_until
from namespaces import Host, hosts, why_not

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
