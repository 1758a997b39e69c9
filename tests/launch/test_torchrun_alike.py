"""The same command under torchrun and under `rankscope run`: what the ranks are given, side by side. What differs on
purpose is listed here and in docs/torchrun.md, and nowhere else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Rankscope, Started
from ports import free_port

pytestmark = pytest.mark.slow
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")

OURS = re.compile(r"RANKSCOPE_\w+|TORCH_FR_BUFFER_SIZE|PYTHONPATH")
"""What ranks are given by us and not by torchrun."""
FOR_EACH_START = re.compile(r"TORCHELASTIC_ERROR_FILE|TORCHELASTIC_RUN_ID|MASTER_PORT|RANKSCOPE_TEST_MARK|SEEN|_")
"""Differs between two starts of torchrun as well."""

SCRIPT = """
import json, os, sys
seen = {
    "environment": dict(os.environ),
    "arguments": sys.argv[1:],
    "script": sys.argv[0],
    "name": __name__,
    "folder": os.getcwd(),
    "umask": os.umask(0o22),
    "leads its session": os.getsid(0) == os.getpid(),
    "unbuffered": sys.stdout.write_through or sys.flags.unbuffered,
    "read": sys.stdin.read() if os.environ.get("RANK") == "0" else "",
}
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(f"{os.environ['SEEN']}/{os.environ['RANK']}-{restart}.json", "w") as file:
    json.dump(seen, file)
if f"--fail-on={os.environ['RANK']}" in sys.argv and restart == "0":
    sys.exit(7)
"""


def seen_by_ranks(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.iterdir())}


def side_by_side(rankscope: Rankscope, *command: object, env: dict[str, str] | None = None) -> tuple[Any, Any]:
    """Both are started at once, each in a folder of its own."""
    started: list[tuple[Started, Path]] = []
    for name, launcher in (("torchrun", TORCHRUN), ("rankscope", (sys.executable, "-m", "rankscope", "run"))):
        seen = rankscope.folder / name
        seen.mkdir()
        words = [str(word).replace("PORT", str(free_port())) for word in command]
        given = {**(env or {}), "SEEN": str(seen)}
        started.append((rankscope.given(*launcher, *words, env=given, stdin=b"told"), seen))
    ended = [(each.wait(), seen_by_ranks(seen)) for each, seen in started]
    return ended[0], ended[1]


def plain(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if not (OURS.fullmatch(name) or FOR_EACH_START.fullmatch(name) or value.startswith("/proc/"))
    }


COMMANDS = {
    "plain": ("--nproc-per-node=2", "train.py", "--lr", "3e-4"),
    "standalone": ("--standalone", "--nproc-per-node=2", "train.py"),
    "a rendezvous of its own": (
        "--nnodes=1:2",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:PORT",
        "--rdzv-id=job7",
        "--rdzv-conf=join_timeout=20,last_call_timeout=1",
        "train.py",
    ),
    "address and port": (
        "--nproc-per-node=2",
        "--master-addr=localhost",
        "--master-port=PORT",
        "--node-rank=0",
        "train.py",
    ),
    "a role": ("--nproc-per-node=2", "--role=trainer", "--local-addr=127.0.0.1", "train.py"),
    "a local rank of 0 for all": ("--nproc-per-node=2", "--virtual-local-rank", "train.py"),
    "a module": ("--nproc-per-node=2", "-m", "train", "a", "--flag"),
    "run path": ("--run-path", "--nproc-per-node=2", "train.py", "--lr", "3e-4"),
    "a restart": ("--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.5", "train.py", "--fail-on=1"),
    "a failure": ("--nproc-per-node=2", "--monitor-interval=0.5", "train.py", "--fail-on=1"),
    "one rank by default": ("train.py",),
}
DIFFERENT_ENDS = {"a failure": (1, 7)}
"""Exit codes of torchrun and of us: the culprit's own is kept."""

DIFFERENT_PLACES = {"run path": ("read", "leads its session")}
"""Torch spawns these with multiprocessing: in its own session, and with nothing to read."""


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_ranks_are_given_the_same(rankscope: Rankscope, command: tuple[str, ...], request: Any) -> None:
    rankscope.script(SCRIPT)
    (theirs, given), (ours, got) = side_by_side(rankscope, *command)
    name = request.node.callspec.id
    assert (theirs.code, ours.code) == DIFFERENT_ENDS.get(name, (0, 0)), ours.err.decode()
    assert set(got) == set(given)
    for rank in given:
        assert plain(got[rank].pop("environment")) == plain(given[rank].pop("environment"))
        for different in DIFFERENT_PLACES.get(name, ()):
            assert got[rank].pop(different) != given[rank].pop(different) or rank != "0-0"
        assert got[rank] == given[rank]


def test_settings_of_the_environment_mean_the_same(rankscope: Rankscope) -> None:
    """PET_ variables stand for options."""
    rankscope.script(SCRIPT)
    env = {"PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "3", "PET_ROLE": "reader", "PET_MODULE": "1"}
    (theirs, given), (ours, got) = side_by_side(rankscope, "train", "x", env=env)
    assert (theirs.code, ours.code) == (0, 0)
    assert set(got) == set(given) == {"0-0", "1-0"}
    assert got["1-0"]["environment"]["ROLE_NAME"] == "reader"
    assert got["1-0"]["environment"]["TORCHELASTIC_MAX_RESTARTS"] == "3"
    for rank in given:
        assert plain(got[rank].pop("environment")) == plain(given[rank].pop("environment"))
        assert got[rank] == given[rank]


def test_program_that_is_no_python_is_given_the_same(rankscope: Rankscope) -> None:
    script = rankscope.script('#!/bin/sh\necho "$RANK $LOCAL_RANK $WORLD_SIZE $*" > "$SEEN/$RANK"\n', "train.sh")
    script.chmod(0o755)
    started = []
    for name, launcher in (("torchrun", TORCHRUN), ("rankscope", (sys.executable, "-m", "rankscope", "run"))):
        seen = rankscope.folder / name
        seen.mkdir()
        command = (*launcher, "--nproc-per-node=2", "--no-python", script, "a", "b")
        started.append((rankscope.given(*command, env={"SEEN": str(seen)}), seen))
    told = []
    for each, seen in started:
        assert each.wait().code == 0
        told.append({path.name: path.read_text() for path in seen.iterdir()})
    assert told[0] == told[1] == {"0": "0 0 2 a b\n", "1": "1 1 2 a b\n"}


JOINS = """
import json, os, sys
import torch, torch.distributed as dist
how = sys.argv[1].replace("ADDRESS", os.environ["MASTER_ADDR"]).replace("OF_THE_STORE", os.environ["MASTER_PORT"])
given = {} if how == "env://" else {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
dist.init_process_group("gloo", init_method=how, **given)
value = torch.ones(1)
dist.all_reduce(value)
with open(f"{os.environ['SEEN']}/{dist.get_rank()}.json", "w") as file:
    json.dump([dist.is_torchelastic_launched(), value.item(), os.environ["TORCHELASTIC_USE_AGENT_STORE"]], file)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["env://", "tcp://ADDRESS:OF_THE_STORE"])
def test_ranks_join_by_the_launchers_store_and_know_that_they_were_launched(rankscope: Rankscope, how: str) -> None:
    rankscope.script(JOINS)
    (theirs, given), (ours, got) = side_by_side(rankscope, "--nproc-per-node=2", "train.py", how)
    assert (theirs.code, ours.code) == (0, 0), ours.err.decode()
    assert got == given == {rank: [True, 2.0, "True"] for rank in ("0", "1")}


def test_two_launchers_of_one_job_meet_at_its_end_point(rankscope: Rankscope) -> None:
    """As torchrun does on two machines, here on one."""
    rankscope.script(SCRIPT)
    told = []
    for name, launcher in (("torchrun", TORCHRUN), ("rankscope", (sys.executable, "-m", "rankscope", "run"))):
        seen = rankscope.folder / name
        seen.mkdir()
        place = ("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=two")
        command = (*launcher, "--nnodes=2", "--nproc-per-node=1", *place, "train.py")
        both = [rankscope.given(*command, env={"SEEN": str(seen)}, stdin=b"") for _ in range(2)]
        assert [each.wait(120.0).code for each in both] == [0, 0]
        found = seen_by_ranks(seen).values()
        told.append([plain(each["environment"]) for each in found])
    assert [rank["GROUP_RANK"] for rank in told[0]] == ["0", "1"]
    assert told[0] == told[1]
