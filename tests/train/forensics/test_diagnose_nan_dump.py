"""`rankscope diagnose` on the files of a bad step, on a machine that need not have torch."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bad_models import fine, kept_step, nan_in_row_1, repeatable, seeded

from rankscope.cli import main
from rankscope.errors import EvidenceError
from rankscope.evidence.nan_dump import is_nan_dump, read_nan_dump
from rankscope.train.forensics.investigation import Investigation

FILES = ("nan_grad_step_7.pt", "debug/nan_debug_step_7.pkl", "debug/nan_debug_step_7.safetensors")


@pytest.fixture
def dumped(tmp_path: Path) -> Path:
    model = seeded(fine, nan_in_row_1)
    looking = Investigation(repeatable(model), place="GPU 0", directory=tmp_path, context={})
    looking.run(kept_step(model), float("nan"), float("nan"), lambda _text: None)
    return tmp_path


@pytest.mark.parametrize("file", FILES)
def test_each_file_gives_the_verdict(dumped: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--json", str(dumped / file)]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["outcome"], verdict["cause"]) == ("nan", "nan-loss")
    (culprit,) = verdict["culprits"]
    assert culprit["rank"] == 0
    assert culprit["where"]["file"].endswith("bad_models.py")
    assert "first the output of blocks.1 (Block); samples 101" in culprit["doing"]


def test_torch_and_numpy_are_not_needed_for_it(dumped: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None\n"
        "from pathlib import Path; from rankscope.evidence.nan_dump import read_nan_dump\n"
        "print([read_nan_dump(Path(file)).ranks[0].progress.non_finite[0].kind for file in sys.argv[1:]])"
    )
    command = [sys.executable, "-c", program, *(str(dumped / file) for file in FILES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "['loss', 'loss', 'loss']\n"


def test_a_dump_of_another_trainer_tells_the_bad_tensors_and_blames_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "debug.pkl"
    bad = np.array([1.0, np.nan])
    file.write_bytes(pickle.dumps({"parameters": {"w": np.ones(2)}, "gradients": {"w": bad, "v": np.ones(3)}}))
    assert main(["diagnose", "--json", str(file)]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["outcome"], verdict["cause"]) == ("nan", "nan-gradient")
    assert verdict["culprits"] == []
    assert any("w" in fact for fact in verdict["because"])


def test_damaged_files_are_one_clear_line(dumped: Path) -> None:
    for file in FILES:
        path = dumped / file
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
        assert is_nan_dump(path)
        with pytest.raises(EvidenceError, match=path.name) as refused:
            read_nan_dump(path)
        assert "\n" not in str(refused.value)


def test_other_files_are_left_to_others(tmp_path: Path) -> None:
    for name, content in (("a", b""), ("b", b"\x80\x04]\x94."), ("c", b"PK\x03\x04"), ("d", b'{"schema": 1}')):
        (tmp_path / name).write_bytes(content)
        assert not is_nan_dump(tmp_path / name)
    assert not is_nan_dump(tmp_path)
