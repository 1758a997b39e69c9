"""Every launcher that people use: a healthy job is left alone, and a hang, a crash and a frozen rank are named rightly.

`docs/launchers.md` is made of what these tests saw: RANKSCOPE_WRITE_LAUNCHERS=1 writes it anew.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launchers import LAUNCHERS, Launcher, path_of_programs

from conftest import COMMAND, Ended, Rankscope
from one_slurm import slurm
from ports import free_port

__all__ = ["slurm"]

pytestmark = pytest.mark.slow
TABLE = Path(__file__).parents[2] / "docs/launchers.md"
FAULTS = ("none", "hang", "crash", "frozen")
SAID = {
    "none": "left alone",
    "hang": "`collective-skipped`, rank 1, its line",
    "crash": "`exception`, rank 1, its line",
    "frozen": "`frozen-process`, rank 1",
}
_seen: dict[str, dict[str, str]] = {}


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    yield
    complete = [launcher for launcher in LAUNCHERS if set(_seen.get(launcher.name, ())) == set(FAULTS)]
    if os.environ.get("RANKSCOPE_WRITE_LAUNCHERS") == "1" and len(complete) == len(LAUNCHERS):
        TABLE.write_text(page(_seen))


def watch(rankscope: Rankscope, launcher: Launcher, fault: str, request: pytest.FixtureRequest) -> Ended:
    if launcher.missing is not None:
        pytest.skip(f"{launcher.missing} is not installed")
    own = rankscope.folder / "run"
    port = str(free_port())
    command = [word.replace("PORT", port) for word in launcher.command]
    env = {"FAULT": fault, "FREE_PORT": port, "OMP_NUM_THREADS": "1", **dict(launcher.env)}
    env |= request.getfixturevalue(launcher.fixture) if launcher.fixture else {}
    env["PATH"] = path_of_programs()
    options: tuple[object, ...] = ("--stages", "off", "--run-dir", own)
    if fault == "frozen":  # a stopped process may be meant: it is waited for
        options = (*options, "--on-hang", "stop", "--stall-after", "4")
    started = rankscope.command(*COMMAND, "watch", *options, "--", *command, env=env)
    started.run_dir = own
    return started.wait(150.0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each time a healthy job under every launcher, and one of the faults in turn; all of them with `--whole-zoo`."""
    if metafunc.function is not test_ranks_are_found_and_diagnosed:
        return
    whole = metafunc.config.getoption("--whole-zoo")
    chosen = [
        pytest.param(launcher, fault, id=f"{launcher.name}-{fault}")
        for number, launcher in enumerate(LAUNCHERS)
        for fault in FAULTS
        if whole or fault in ("none", FAULTS[1 + number % 3])
    ]
    metafunc.parametrize(("launcher", "fault"), chosen)


def test_ranks_are_found_and_diagnosed(
    rankscope: Rankscope, launcher: Launcher, fault: str, request: pytest.FixtureRequest
) -> None:
    ended = watch(rankscope, launcher, fault, request)
    verdict = ended.verdict
    told = ended.err.decode(errors="replace")
    _seen.setdefault(launcher.name, {})[fault] = said(verdict)
    assert said(verdict) == SAID[fault], told
    assert set(verdict["exit_codes"]) == {"0", "1"}
    if fault == "none":
        assert (ended.code, verdict["exit_codes"]) == (0, {"0": 0, "1": 0})
        assert ended.out.count(b"trained on") == 2
        assert "rankscope: " not in told
    elif fault == "crash":
        assert ended.code not in (0, 75)  # the command's own
        assert verdict["exit_codes"]["1"] == 1
    else:
        assert ended.code == 75
        assert verdict["victims"] == [0]


def said(verdict: dict[str, Any]) -> str:
    """A cell of the table."""
    if verdict["outcome"] == "ok" and not verdict["culprits"]:
        return "left alone"
    ranks = ", ".join(f"rank {culprit['rank']}" for culprit in verdict["culprits"])
    places = {(culprit["where"] or {}).get("function") for culprit in verdict["culprits"]}
    line = ", its line" if places == {"misbehave"} and verdict["cause"] != "frozen-process" else ""
    return f"`{verdict['cause']}`, {ranks}{line}"


HEAD = """\
# Launchers

`rankscope watch -- COMMAND` starts any command and watches the ranks that it starts. Each row was run, with two ranks
without GPUs: a healthy job, a rank that calls a collective alone, one that raises, one that is stopped (SIGSTOP).
Written by `tests/launch/test_launchers.py`.

| command | healthy | hang | crash | frozen rank | a rank is known by | before it joins a group |
| --- | --- | --- | --- | --- | --- | --- |
"""
TAIL = """
The exit code is the command's own, or 75 (a hang) and 76 (wrong numbers) where it was stopped. The command's output is
its own: it is neither prefixed nor kept. A worker of Ray stays when its work has ended: that of a rank whose work an
exception ended counts as ended with 1, and one whose work was done with 0. What is not seen:

- processes that do not get the command's environment: on another machine, after `env -i`, of a daemon that ran before
  (a Ray cluster that the command only connects to);
- programs that do not use torch.distributed;
- of several jobs that a command runs at once, all but the first. One after the other, each is watched.
"""


def page(seen: dict[str, dict[str, str]]) -> str:
    rows = []
    for launcher in LAUNCHERS:
        cells = [f"`{launcher.name}`", *(seen[launcher.name][fault] for fault in FAULTS)]
        rows.append("| " + " | ".join((*cells, launcher.found_by, launcher.before_joining)) + " |\n")
    return "".join((HEAD, *rows, TAIL))


def test_table_in_the_documentation_is_what_was_seen() -> None:
    assert TABLE.read_text() == page({launcher.name: SAID for launcher in LAUNCHERS})


def test_command_that_starts_no_rank_keeps_its_code_and_output(rankscope: Rankscope) -> None:
    folder = rankscope.folder / "run"
    ended = rankscope.command(*COMMAND, "watch", "--run-dir", folder, "--", "sh", "-c", "echo hi; exit 7").wait()
    assert (ended.code, ended.out) == (7, b"hi\n")
    assert b"no rank was seen" in ended.err
    assert not (folder / "verdict.json").exists()


def test_mistakes_in_the_command_line_are_one_line(rankscope: Rankscope) -> None:
    for command, said in (((), b"no command"), (("--", "no-such-program-here"), b"no program 'no-such-program-here'")):
        ended = rankscope.command(*COMMAND, "watch", *command).wait()
        assert ended.code == 2
        assert said in ended.err
        assert ended.err.count(b"\n") == 1


def test_ctrl_c_takes_a_last_look_before_the_command_has_it(rankscope: Rankscope) -> None:
    launcher = LAUNCHERS[0]
    env = {"FAULT": "wait", "PATH": path_of_programs(), "OMP_NUM_THREADS": "1"}
    command = (*COMMAND, "watch", "--stages", "off", "--run-dir", rankscope.folder / "run", "--", *launcher.command)
    started = rankscope.command(*command, env=env)
    started.shows("waits for nothing")
    os.kill(started.process.pid, signal.SIGINT)
    ended = started.wait(60.0)
    verdict = json.loads((rankscope.folder / "run/verdict.json").read_text())
    assert (ended.code, verdict["outcome"]) == (130, "interrupted")


def test_job_that_its_launcher_restarts_is_watched_again(rankscope: Rankscope) -> None:
    """What ended the first attempt is kept beside the verdict."""
    launcher = LAUNCHERS[0]
    env = {"FAULT": "crash once", "FREE_PORT": str(free_port()), "PATH": path_of_programs(), "OMP_NUM_THREADS": "1"}
    words = [*launcher.command[:1], "--max-restarts=1", *launcher.command[1:]]
    run = rankscope.folder / "run"
    ended = rankscope.command(*COMMAND, "watch", "--stages", "off", "--run-dir", run, "--", *words, env=env).wait(100.0)
    verdict = json.loads((run / "verdict.json").read_text())
    assert (ended.code, verdict["outcome"]) == (0, "ok")
    assert any("ValueError" in note for note in verdict["notes"])
    assert (run / "evidence/attempt_0").exists()


def test_our_example_runs_under_the_launcher_that_injects_local_rank(rankscope: Rankscope) -> None:
    example = Path(__file__).parents[2] / "examples/plain_ddp.py"
    run = rankscope.folder / "run"
    words = (sys.executable, "-m", "torch.distributed.launch", "--nproc-per-node=2", f"--master-port={free_port()}")
    command = (*COMMAND, "watch", "--stages", "off", "--run-dir", run, "--", *words, example, "--debug")
    ended = rankscope.command(*command).wait(100.0)
    verdict = json.loads((run / "verdict.json").read_text())
    assert (ended.code, verdict["outcome"]) == (0, "ok"), ended.err.decode()
