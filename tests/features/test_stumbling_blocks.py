"""What newcomers stumble over: each says what happened, and where things went."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import COMMAND, Rankscope
from rankscope.cli import main
from rankscope.evidence import launchers
from rankscope.launch.folder import MARK, make_run_folder
from rankscope.train.config import CheckpointConfig
from rankscope.train.state import manifest as manifests
from rankscope.train.state.directory import CheckpointDirectory


def test_a_used_run_folder_says_where_the_earlier_run_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = tmp_path / "run"
    make_run_folder(wanted, "train.py")
    (wanted / MARK).write_text("{}")
    capsys.readouterr()
    make_run_folder(wanted, "train.py")
    assert f"the earlier run in '{wanted}' is now in '{wanted}.1'" in capsys.readouterr().err
    assert (tmp_path / "run.1" / MARK).exists()


@pytest.mark.slow
def test_a_script_that_does_not_compile_is_named_with_its_line(rankscope: Rankscope) -> None:
    ended = rankscope.run(rankscope.script("import os\nprint('a'\nx = 1\n"))
    verdict = ended.verdict
    assert (verdict["outcome"], verdict["cause"]) == ("crash", "exception")
    assert {culprit["where"]["line"] for culprit in verdict["culprits"]} == {2}
    assert "train.py:2" in verdict["headline"]


@pytest.mark.slow
def test_attach_to_a_shell_is_never_ok(rankscope: Rankscope) -> None:
    shell = subprocess.Popen(["sleep", "100"])
    try:
        ended = rankscope.command(*COMMAND, "attach", "--pid", shell.pid, "--watch", 1).wait(60)
    finally:
        shell.kill()
        shell.wait()
    assert ended.code in (2, 3), ended.lines()
    assert b"OK" not in ended.out
    assert str(shell.pid) in (ended.out + ended.err).decode()


def test_the_first_process_of_a_container_may_be_the_job_itself() -> None:
    """`attach --pid 1` is refused where the first process is no rank and no launcher, as init is."""
    other = subprocess.Popen(["sleep", "100"])
    try:
        assert launchers.may_lead(os.getpid())
        assert not launchers.may_lead(other.pid)
    finally:
        other.kill()
        other.wait()


def saved(directory: CheckpointDirectory, step: int) -> Path:
    directory.begin(step)
    manifest = manifests.Manifest(
        step=step,
        world_size=1,
        parameters={},
        optimizer={},
        loader={},
        extra={},
        saved_at=1.0,
        torch="2.13.0",
        files={},
    )
    return directory.publish(manifest, 3)


@pytest.fixture
def directory(tmp_path: Path) -> CheckpointDirectory:
    made = CheckpointDirectory(tmp_path / "checkpoints")
    made.open()
    return made


def test_latest_does_not_dangle_after_a_fresh_start(directory: CheckpointDirectory) -> None:
    one, two = saved(directory, 10), saved(directory, 20)
    directory.set_aside([two])
    assert (directory.path / "latest").resolve() == one
    directory.set_aside([one])
    assert not (directory.path / "latest").is_symlink()


def test_earlier_runs_do_not_pile_up(directory: CheckpointDirectory) -> None:
    for _ in range(5):
        directory.set_aside([saved(directory, 10)])
    gone = directory.forget_earlier(3)
    assert len(gone) == 2
    assert len(list(directory.path.glob("earlier-*"))) == 3
    assert directory.forget_earlier(3) == []
    assert replace(CheckpointConfig(), keep_earlier=None).keep_earlier is None


def test_a_fault_after_the_last_step_is_refused_not_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--debug", "--max-steps", "4", "--fault", "crash"]) == 2
    assert "step 5 never comes" in capsys.readouterr().err
