"""Where py-spy is missing a run says so, and still proves what the ranks themselves tell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.launch import beforehand

WITHOUT = """\
import sys
from rankscope.evidence import stacks
stacks.find_py_spy = lambda: None
from rankscope.cli import main
sys.exit(main(sys.argv[1:]))
"""
DEADLOCK = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    dist.broadcast(torch.ones(16), src=0)
dist.barrier()
"""


def test_nothing_is_said_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beforehand, "find_py_spy", lambda: "/usr/bin/py-spy")
    assert beforehand.lacks_py_spy() is None
    monkeypatch.setattr(beforehand, "find_py_spy", lambda: None)
    assert "pip install py-spy" in (beforehand.lacks_py_spy() or "")


@pytest.mark.slow
def test_a_deadlock_is_proven_without_py_spy_and_its_lack_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DEADLOCK)
    arguments = ["run", "--nproc-per-node", "2", "--run-dir", str(tmp_path / "run"), "train.py"]
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 75, ended.stderr
    assert ended.stderr.count("rankscope: py-spy is not installed") == 1
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert (verdict["outcome"], verdict["certainty"], verdict["cause"]) == ("hang", "proven", "collective-skipped")
    assert [(culprit["rank"], culprit["where"]["line"]) for culprit in verdict["culprits"]] == [(0, 7)]
