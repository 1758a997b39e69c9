"""RUN_IMPORT_TEST makes `run` check the script's imports first; a job that would fail is not started."""

from __future__ import annotations

from pathlib import Path

import pytest

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
