"""Vast: the start script installs what it brings, sets NCCL's debugging, and keeps the exit code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.clusters.vast.scripts import needed_packages

ROW = "3.6"
COMMAND_LINE = "rankscope launch vast --config my.yaml --auto-shutdown --dry-run"
DIFFERS = (
    "The words of success and failure are `rankscope: the job has completed successfully` and `rankscope: the"
    " job failed with exit code N`. Without `--num-gpus` two GPUs are rented and the line says so."
)


@pytest.fixture
def dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text("training:\n  batch_size: 4\n")
    assert main(["launch", "vast", "--config", "my.yaml", "--auto-shutdown", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "2 GPUs" in shown.err
    return shown.out


def test_without_a_number_of_gpus_there_are_two(dry_run: str) -> None:
    assert "num_gpus=2" in dry_run
    assert "--nproc-per-node 2" in dry_run


def test_nccl_debugging_is_on_as_in_the_notes(dry_run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "-- --comm-debug\n" in dry_run
    assert main(["launch", "vast", "--config", str(tmp_path / "my.yaml"), "--no-comm-debug", "--dry-run"]) == 0
    assert "--comm-debug" not in capsys.readouterr().out


def test_the_package_is_brought_along_and_its_needs_are_installed(dry_run: str) -> None:
    assert 'export PYTHONPATH="$folder/own' in dry_run
    assert "pip install --quiet" in dry_run
    assert "pip install --quiet rankscope" not in dry_run
    assert any(name.startswith("msgspec") for name in needed_packages("run"))
    assert any(name.startswith("tokenizers") for name in needed_packages("train"))
    assert not any(name.startswith("tokenizers") for name in needed_packages("run"))


def test_as_many_gpus_as_the_command_starts_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    assert main(["launch", "vast", "--dry-run", "--", "--nproc-per-node", "4", "train.py"]) == 0
    assert "num_gpus=4" in capsys.readouterr().out


@pytest.mark.parametrize("code", [0, 41])
def test_success_is_said_on_success_only_and_the_code_is_kept(dry_run: str, tmp_path: Path, code: int) -> None:
    script = dry_run[dry_run.index("job.sh:\n") + 8 :].replace("/workspace/rankscope", str(tmp_path / "machine"))
    (tmp_path / "machine" / "work").mkdir(parents=True)
    tool = tmp_path / "bin" / "python3"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/bash\n[[ $2 == pip ]] && exit 0\nexit {code}\n")
    tool.chmod(0o755)
    ended = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": f"{tool.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code
    assert ("completed successfully" in ended.stdout) == (code == 0)
    assert ("failed with exit code 41" in ended.stdout) == (code != 0)
