"""Commands whose standard streams are closed, on a full disk, or read by nobody."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from conftest import COMMAND

FULL = "rankscope: the output cannot be written: No space left on device\n"
LOG = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: no\n"


def shell(folder: Path, redirected: str, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", "env", *(f"{name}={value}" for name, value in env.items())]
    return subprocess.run(
        [*command, *COMMAND, *map(str, words)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.log").write_text(LOG)
    (tmp_path / "ok.py").write_text("print('hello')\n")
    (tmp_path / "bad.py").write_text("import sys\nsys.exit(5)\n")
    return tmp_path


WORDS = [
    ("--version",),
    ("--help",),
    ("diagnose", "--help"),
    ("diagnose", "job.log"),
    ("diagnose", "--json", "job.log"),
    ("report", "job.log", "--output", "-"),
    ("gpus",),
]


@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_output_on_a_full_disk_is_one_line_and_code_74(folder: Path, words: tuple[str, ...], buffered: str) -> None:
    ended = shell(folder, ">/dev/full", *words, PYTHONUNBUFFERED=buffered)
    assert (ended.returncode, ended.stderr.splitlines(keepends=True)[-1:]) == (74, [FULL])
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_closed_streams_are_as_good_as_none(folder: Path, words: tuple[str, ...], closed: str) -> None:
    ended = shell(folder, closed, *words)
    plain = shell(folder, "", *words)
    assert ended.returncode == plain.returncode
    assert ended.stderr == ("" if "2>&-" in closed else plain.stderr)
    if closed == "2>&-":
        assert ended.stdout.splitlines()[:1] == plain.stdout.splitlines()[:1]


@pytest.mark.parametrize("redirected", ["2>/dev/full", "2>&-", ">&- 2>&-"])
def test_a_mistake_that_cannot_be_told_is_still_one(folder: Path, redirected: str) -> None:
    ended = shell(folder, redirected, "diagnose", "nonexist")
    assert (ended.returncode, ended.stdout) == (2, "")


def test_a_reader_who_has_had_enough_is_not_complained_about(folder: Path) -> None:
    """Also where the output is so short that it is written at the very end."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as unread:
        for words in (("--version",), ("diagnose", "job.log")):
            ended = subprocess.run(
                [*COMMAND, *words], cwd=folder, stdout=unread, stderr=subprocess.PIPE, check=False, timeout=60
            )
            assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.slow
@pytest.mark.parametrize("redirected", [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full 2>&1"])
@pytest.mark.parametrize(("script", "code", "outcome"), [("ok.py", 0, "ok"), ("bad.py", 5, "crash")])
def test_a_job_runs_and_has_its_verdict_without_streams(
    folder: Path, redirected: str, script: str, code: int, outcome: str
) -> None:
    ended = shell(folder, redirected, "run", "--nproc-per-node", 1, "--run-dir", "run", script)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert json.loads((folder / "run" / "verdict.json").read_bytes())["outcome"] == outcome


@pytest.mark.slow
def test_a_command_is_watched_without_streams(folder: Path) -> None:
    """It is given streams that lead nowhere, and no file of ours under their numbers."""
    (folder / "where.py").write_text(
        "import os\nprint(*(os.readlink(f'/proc/self/fd/{n}') for n in (0, 1)), file=open('is', 'w'))\n"
    )
    ended = shell(folder, "<&- >&-", "watch", "--run-dir", "run", "--", "python", "where.py")
    assert ended.returncode == 0, ended.stderr
    assert (folder / "is").read_text() == "/dev/null /dev/null\n"


@pytest.mark.slow
@pytest.mark.parametrize(("script", "code"), [("ok.py", 0), ("bad.py", 5)])
def test_json_that_cannot_be_printed_is_told_and_the_jobs_own_code_stays(folder: Path, script: str, code: int) -> None:
    ended = shell(folder, ">/dev/full", "run", "--json", "--nproc-per-node", 1, "--run-dir", "run", script)
    assert ended.returncode == code
    told = "the verdict could not be printed as JSON (No space left on device): it is in run/verdict.json"
    assert f"rankscope: {told}\n" in ended.stderr
