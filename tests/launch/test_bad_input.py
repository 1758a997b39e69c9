"""A mistake of the user is one line on the terminal and exit code 2; nothing is created, nothing keeps running."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import COMMAND, Ended, Rankscope
from rankscope.cli import usage

GOOD = "print('started')\n"


def the_one_line(ended: Ended, code: int = 2) -> str:
    """What was said, if it was said as it should be."""
    assert ended.out == b""
    text = ended.err.decode()
    assert re.fullmatch(r"rankscope: [^\n]+\n", text), text
    assert ended.code == code
    return text


def everything_in(folder: Path) -> set[str]:
    """But for what the test itself keeps of the commands it starts."""
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    return {str(path) for path in paths if not path.parts[0].startswith("command")}


MISTAKES = {
    "missing.py": "missing.py",
    "--no-such-option train.py": "no-such-option",
    "--nproc-per-node 0 train.py": "at least 1",
    "--nnodes 0 train.py": "nodes",
    "--stall-after -1 train.py": "-1",
    "--no-python no-such-program": "no-such-program",
    "--run-dir /proc/nowhere/run train.py": "/proc/nowhere/run",
    "--run-dir train.py/run train.py": "train.py/run",
    "--log-dir train.py/logs train.py": "train.py/logs",
    "": "there is no script to run",
}
"""Arguments of `rankscope run`, and a word of the line that is said about them."""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistake_in_the_command_is_one_line(rankscope: Rankscope, arguments: str) -> None:
    rankscope.script(GOOD)
    before = everything_in(rankscope.folder)
    ended = rankscope.command(*COMMAND, "run", *arguments.split()).wait(60.0)
    assert MISTAKES[arguments] in the_one_line(ended)
    assert everything_in(rankscope.folder) == before


def test_unknown_verb_is_one_line_with_the_nearest(rankscope: Rankscope) -> None:
    ended = rankscope.command(*COMMAND, "diagnoze", "x").wait(20.0)
    assert "did you mean 'diagnose'" in the_one_line(ended)
    assert "'zzz'" in the_one_line(rankscope.command(*COMMAND, "zzz").wait(20.0))


def test_help_needs_no_torch_and_no_verb_is_a_mistake(rankscope: Rankscope) -> None:
    ended = rankscope.command(*COMMAND, "--help").wait(20.0)
    assert (ended.code, ended.out.decode(), ended.err) == (0, usage(), b"")
    assert rankscope.command(*COMMAND).wait(20.0).code == 2
    probe = "import sys; from rankscope.cli import main; main(['--help']); print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, timeout=20, check=True).stdout
    assert shown.endswith(b"False\n")


def test_help_of_run_is_torchruns_with_ours(rankscope: Rankscope) -> None:
    ended = rankscope.command(*COMMAND, "run", "--help").wait(60.0)
    assert ended.code == 0
    assert ended.err == b""
    for text in (b"usage: rankscope run", b"--nproc-per-node", b"--rdzv-endpoint", b"--stall-after", b"--run-dir"):
        assert text in ended.out


def test_python_without_torch_is_told_so(rankscope: Rankscope) -> None:
    rankscope.script(GOOD)
    without_torch = rankscope.folder / "without_torch"
    without_torch.mkdir()
    (without_torch / "sitecustomize.py").write_text(
        "import importlib.machinery as machinery\n"
        "find = machinery.PathFinder.find_spec\n"
        "def find_spec(name, path=None, target=None):\n"
        "    return None if name.partition('.')[0] == 'torch' else find(name, path, target)\n"
        "machinery.PathFinder.find_spec = staticmethod(find_spec)\n"
    )
    env = {"PYTHONPATH": str(without_torch)}
    ended = rankscope.command(*COMMAND, "run", "train.py", env=env).wait(20.0)
    assert "PyTorch" in the_one_line(ended)
    assert not (rankscope.folder / "runs").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.decode().strip()}")
    yield folder
    # Lazily: a reader that is still there must not make the test fail for another reason.
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_full_disk_costs_files_and_never_the_verdict(rankscope: Rankscope, small_disk: Path) -> None:
    script = rankscope.script(
        f"""
        import os, time
        print("before the disk was full", flush=True)
        while not os.path.getsize({str(small_disk / "run/logs/attempt_0/1/stdout.log")!r}):
            time.sleep(0.01)
        if os.environ["RANK"] == "1":
            with open({str(small_disk / "filler")!r}, "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 4096)
                except OSError as error:
                    assert error.errno == 28, error
            print("after the disk was full", flush=True)
            raise LookupError("no such sample")
        time.sleep(60)
        """
    )
    started = rankscope.command(*COMMAND, "run", "--nproc-per-node", "2", "--run-dir", small_disk / "run", script)
    ended = started.wait(60.0)
    shown = ended.lines()
    assert ended.code == 1
    assert "R1:after the disk was full" in shown
    assert any("LookupError: no such sample" in line and line.startswith("R1:") for line in shown)
    verdict = "\n".join(line for line in shown if not line.startswith(("R0:", "R1:")))
    assert "CRASH" in verdict
    assert "train.py:13" in verdict
    assert "No space left on device" in verdict
    assert "Traceback" not in verdict
    kept = small_disk / "run"
    assert b"before the disk was full\n" in (kept / "logs/attempt_0/1/stdout.log").read_bytes()
    assert (kept / "run.json").read_bytes().startswith(b"{")
    whole = kept / "verdict.json"
    assert not whole.exists() or whole.read_bytes().rstrip().endswith(b"}")
