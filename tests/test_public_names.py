"""What programs may import of us: light, lazy, and honest about the process they are in."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rankscope
from rankscope.process_status import relevant


def test_status_tells_variables_with_secrets_masked_and_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("UNRELATED", "x")
    seen = rankscope.status()
    assert seen.variables["RANK"] == "3"
    assert "0123456789abcdef" not in seen.variables["WANDB_API_KEY"]
    assert "UNRELATED" not in seen.variables
    assert seen.versions["python"].count(".") >= 1
    assert not seen.group.initialized
    assert relevant({"HOME": "/", "NCCL_DEBUG": "INFO"}) == {"NCCL_DEBUG": "INFO"}


def test_names_are_found_without_importing_torch() -> None:
    program = (
        "import sys, rankscope\n"
        "rankscope.stage('x'); rankscope.step(1); rankscope.log_memory('x'); rankscope.status()\n"
        "rankscope.setup_distributed\n"
        "assert 'torch' not in sys.modules and 'msgspec' not in sys.modules, list(sys.modules)\n"
        "assert {'stage', 'status', 'setup_distributed'} <= set(dir(rankscope))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        rankscope.no_such_name  # noqa: B018
