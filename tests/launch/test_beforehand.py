"""RUN_IMPORT_TEST and RUN_SINGLE_GPU_TEST make `run` do these checks first; a job that would fail is not started."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Rankscope
from rankscope.checks import single
from rankscope.checks.model import Findings, Flaw
from rankscope.errors import CheckFailedBeforehand
from rankscope.launch import options
from rankscope.launch.beforehand import run_wanted_checks


def test_job_whose_import_fails_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import json\nimport no_such_package\n")
    monkeypatch.delenv("RUN_SINGLE_GPU_TEST", raising=False)
    monkeypatch.setenv("RUN_IMPORT_TEST", "0")
    run_wanted_checks(options.parse([str(script)]))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RUN_IMPORT_TEST", "1")
    with pytest.raises(CheckFailedBeforehand, match="the job was not started: imports failed"):
        run_wanted_checks(options.parse([str(script)]))
    assert "import-failed: the package no_such_package is missing" in " ".join(capsys.readouterr().err.split())
    script.write_text("import json\nimport msgspec\n")
    run_wanted_checks(options.parse([str(script)]))
    assert "msgspec:" in capsys.readouterr().err


def test_job_on_a_device_that_does_not_train_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    flaw = Flaw("nan-loss", "cuda:0: the loss of step 3 is nan", "the device computes wrongly")
    monkeypatch.setattr(single, "check_single", lambda _limit_s: Findings(flaws=(flaw,)))
    monkeypatch.delenv("RUN_IMPORT_TEST", raising=False)
    monkeypatch.setenv("RUN_SINGLE_GPU_TEST", "no")
    run_wanted_checks(options.parse([str(script)]))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RUN_SINGLE_GPU_TEST", "1")
    with pytest.raises(CheckFailedBeforehand, match="the job was not started: single failed"):
        run_wanted_checks(options.parse([str(script)]))
    assert "nan-loss: cuda:0: the loss of step 3 is nan" in capsys.readouterr().err


@pytest.mark.slow
def test_both_checks_pass_before_the_job_starts(rankscope: Rankscope) -> None:
    script = rankscope.script("import msgspec\nprint('the job runs', flush=True)\n")
    wanted = {"RUN_IMPORT_TEST": "true", "RUN_SINGLE_GPU_TEST": "1"}
    ended = rankscope.run(script, nproc=1, env=wanted, timeout_s=150.0)
    told = ended.err.decode()
    assert ended.code == 0, told
    assert "msgspec:" in told
    assert "8 steps" in told
    assert b"the job runs" in ended.out
