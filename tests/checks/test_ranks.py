"""Checks that take several ranks: the missing one, the one whose clock is off, the pair that is cut."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import COMMAND, Rankscope
from ports import free_port
from rankscope.checks.command import TOTAL_S
from rankscope.checks.links import Link, judge, rounds

OFF = """
import runpy, sys, time
real = time.time
time.time = lambda: real() - 90.0
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


def environment(rank: int, world: int, port: int, **more: str) -> dict[str, str]:
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    return {**own, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", **more}


STARTS = """
import time
from rankscope.checks.child import Child
print(Child(["-c", "import time; time.sleep(600)"]).process.pid, flush=True)
time.sleep(600)
"""


def test_a_check_that_is_killed_leaves_no_ranks_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE) as check:
        assert check.stdout is not None
        watched = os.pidfd_open(int(check.stdout.readline()))
        try:
            check.kill()
            assert select.select([watched], [], [], 20.0)[0], "the rank outlived its check"
        finally:
            os.close(watched)


@pytest.mark.slow
def test_healthy_machine_passes_in_one_command(rankscope: Rankscope) -> None:
    ended = rankscope.command(*COMMAND, "check", "--json", "--ranks", 2).wait(200.0)
    report = json.loads(ended.out)
    flaws = [flaw for step in report["steps"] for flaw in step["flaws"]]
    # The disk of a machine that runs many tests at once may really be slow, and is then said to be.
    assert [flaw for flaw in flaws if flaw["cause"] != "slow-rank"] == [], report
    assert [step["step"] for step in report["steps"]] == [
        *("basic", "limits", "storage", "network", "imports", "single", "ddp", "links")
    ]
    assert (ended.code, report["ok"]) == ((1, False) if flaws else (0, True))
    assert report["seconds"] <= TOTAL_S + 15.0  # the limit is its own; stopping what is over it takes a moment
    ddp = next(step for step in report["steps"] if step["step"] == "ddp")
    all_of_them = "all_reduce, broadcast, reduce, all_gather, gather, scatter"
    assert ddp["status"] != "pass" or any(all_of_them in fact for fact in ddp["facts"])


@pytest.mark.slow
def test_missing_rank_of_a_wrong_world_size_is_named(rankscope: Rankscope) -> None:
    port = free_port()
    limit = {"RANKSCOPE_CHECK_LIMIT_S": "12"}
    ranks = [
        rankscope.command(sys.executable, "-m", "rankscope.checks.ddp", env=environment(rank, 3, port, **limit))
        for rank in (0, 1)
    ]
    for started in ranks:
        ended = started.wait(90.0)
        text = ended.out.decode()
        assert ended.code == 1, text
        assert "FAILED (rank-missing): WORLD_SIZE=3, and rank 2 never came" in text


@pytest.mark.slow
def test_six_steps_pass_under_torchrun_and_one_with_its_clock_off_is_named(rankscope: Rankscope) -> None:
    arguments = ["--nproc-per-node", 2, "--standalone", "-m", "rankscope.checks.ddp"]
    ended = rankscope.command(sys.executable, "-m", "torch.distributed.run", *arguments).wait(120.0)
    text = ended.out.decode()
    assert ended.code == 0, text + ended.err.decode()
    for rank in (0, 1):
        assert f"[rank {rank}] all six steps passed" in text
        for step in range(1, 7):
            assert f"[rank {rank}] STEP {step} of 6" in text
    port = free_port()
    script = rankscope.script(OFF, "off.py")
    module = "rankscope.checks.network"
    first = rankscope.command(sys.executable, "-m", module, env=environment(0, 2, port))
    second = rankscope.command(sys.executable, script, module, env=environment(1, 2, port))
    told = first.wait(90.0)
    assert second.wait(90.0).code == 0
    assert told.code == 1
    assert "FAILED (rank-missing): the clock of" in told.out.decode()
    assert "s behind that of" in told.out.decode()


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def three_hosts() -> Iterator[list[str]]:
    """Three network namespaces on one bridge, with addresses 10.93.0.1 to 3."""
    mark = uuid.uuid4().hex[:5]
    names = [f"rs{mark}{number}" for number in range(3)]
    bridge = f"rb{mark}"
    try:
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "link", "set", bridge, "up")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not make network namespaces")
    try:
        for number, name in enumerate(names):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"v{name}", "master", bridge, "up")
            run("ip", "-n", name, "addr", "add", f"10.93.0.{number + 1}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


@pytest.mark.slow
def test_pair_that_is_cut_off_is_named(three_hosts: list[str], rankscope: Rankscope) -> None:
    run("ip", "-n", three_hosts[1], "route", "add", "blackhole", "10.93.0.3/32")
    run("ip", "-n", three_hosts[2], "route", "add", "blackhole", "10.93.0.2/32")
    more = {"MASTER_ADDR": "10.93.0.1", "GLOO_SOCKET_IFNAME": "eth0", "LOCAL_RANK": "0"}
    started = [
        rankscope.command(
            *("ip", "netns", "exec", name, *COMMAND, "check", "links", "--json", "--limit", 40),
            env={**environment(rank, 3, 29511), **more},
        )
        for rank, name in enumerate(three_hosts)
    ]
    for command in started:
        ended = command.wait(120.0)
        assert ended.code == 1
        flaws = [flaw for step in json.loads(ended.out)["steps"] for flaw in step["flaws"]]
        assert len(flaws) == 1, flaws
        assert flaws[0]["cause"] == "comm-error"
        assert flaws[0]["what"].startswith("rank 1 (")
        assert " and rank 2 (" in flaws[0]["what"]


@pytest.mark.parametrize("world", [2, 3, 4, 7, 8])
def test_every_pair_meets_once_and_nobody_twice_in_a_round(world: int) -> None:
    plan = rounds(world)
    met = [pair for pairs in plan for pair in pairs]
    assert sorted(met) == [(low, high) for low in range(world) for high in range(low + 1, world)]
    for pairs in plan:
        seated = [rank for pair in pairs for rank in pair]
        assert len(seated) == len(set(seated))


def test_slow_pair_is_told_from_the_others() -> None:
    links = [Link(low, high, 50.0, 1000.0) for low in range(4) for high in range(low + 1, 4)]
    hosts = ("a", "a", "b", "b")
    assert judge(links, hosts).flaws == ()
    links[2] = Link(0, 3, 50.0, 100.0)
    found = judge(links, hosts)
    assert [flaw.cause for flaw in found.flaws] == ["slow-rank"]
    assert "rank 0 (a) and rank 3 (b) are slow: 100 MB/s" in found.flaws[0].what
    kept = [*links[:2], Link(0, 3, None, None, "not answered"), Link(1, 3, None, None, "never came", tried=False)]
    assert [flaw.rank for flaw in judge(kept, hosts).flaws] == [3]
    only = [Link(0, 1, 50.0, 3.0)]
    assert judge(only, hosts).flaws == ()


def test_help_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys; from rankscope.cli import main\ntry: main([sys.argv[1], '--help'])\nexcept SystemExit: pass\n"
    code += "assert 'torch' not in sys.modules"
    for verb in ("check", "gpus"):
        ended = subprocess.run([sys.executable, "-c", code, verb], cwd=tmp_path, capture_output=True, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        assert b"usage: rankscope" in ended.stdout
    assert os.environ.get("RANK") is None
