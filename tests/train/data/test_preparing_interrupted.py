"""Preparations that are killed, run out of room, or meet another one."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

from preparations import left_in, overrides, quiet, run_config, text_file  # noqa: E402

from rankscope.errors import DataError, NoRoom, UsageError  # noqa: E402
from rankscope.train.data import prepare  # noqa: E402

STOPS_HALFWAY = """
import sys, time
from pathlib import Path
from rankscope.train.config import *
from rankscope.train.data import prepare

def halfway(done, total, tokens):
    print("halfway", flush=True)
    time.sleep(600)

prepare(RunConfig(model=ModelConfig(context_length=16), data=DataConfig(source="text", tokenizer="bytes", workers=1,
        paths=(sys.argv[1],), cache_dir=sys.argv[2])), print, halfway)
"""


def test_a_killed_preparation_leaves_nothing_that_looks_complete_and_no_process(tmp_path: Path) -> None:
    path = text_file(tmp_path)
    job = subprocess.Popen(
        [sys.executable, "-c", STOPS_HALFWAY, str(path), str(tmp_path / "cache")], stdout=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    while "halfway" not in (line := job.stdout.readline()):
        assert line, "it ended before it was half way"
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    job.send_signal(signal.SIGKILL)
    job.wait()
    job.stdout.close()
    (left,) = left_in(tmp_path)
    assert ".building-" in left
    for child in children:
        _wait_until_gone(int(child))
    prepared = prepare(run_config(tmp_path, path), quiet)
    assert left_in(tmp_path) == [prepared.manifest.key]


def test_what_a_killed_preparation_of_another_dataset_left_is_removed_unless_it_is_held(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for key in ("gone", "busy"):
        (cache / f".{key}.building-1").mkdir(parents=True)
        (cache / f".{key}.lock").touch()
    with (cache / ".busy.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        prepared = prepare(run_config(tmp_path, text_file(tmp_path)), quiet)
    assert left_in(tmp_path) == [".busy.building-1", prepared.manifest.key]


def test_text_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = text_file(tmp_path)

    def change(_done: int, _total: int, _tokens: int) -> None:
        path.write_bytes(path.read_bytes().upper())

    with pytest.raises(DataError, match="changed while it was read"):
        prepare(run_config(tmp_path, path), quiet, change)
    assert left_in(tmp_path) == []


def test_files_in_the_current_folder_do_not_take_the_place_of_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("msgspec.py", "numpy.py", "tokenizers.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong one')")
    assert prepare(run_config(tmp_path, text_file(tmp_path)), quiet).manifest.documents == 1


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} is still there")


FULL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from rankscope.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_is_one_line_and_nothing_older_is_lost(tmp_path: Path) -> None:
    older = prepare(run_config(tmp_path, text_file(tmp_path, "older\n" * 100, "older.txt")), quiet)
    path = text_file(tmp_path, "text\n" * 100_000)
    arguments = overrides(tmp_path, paths=str(path))
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK, "prepare", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == NoRoom.exit_code == 74
    assert "File too large" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert left_in(tmp_path) == [older.manifest.key]


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    config = run_config(tmp_path, text_file(tmp_path), cache_dir=str(text_file(tmp_path, "a file", "cache")))
    with pytest.raises(UsageError, match=r"write another data\.cache_dir"):
        prepare(config, quiet)


# Two jobs at once


def test_the_second_job_waits_and_says_so(tmp_path: Path) -> None:
    path = text_file(tmp_path)
    prepared = prepare(run_config(tmp_path, path), quiet)
    hidden = tmp_path / "hidden"
    prepared.folder.rename(hidden)
    (lock,) = (tmp_path / "cache").glob(".*.lock")
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(f"{os.getpid()}\n")
        held.flush()
        job = subprocess.Popen(
            [sys.executable, "-m", "rankscope", "prepare", *overrides(tmp_path, paths=str(path))],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert job.stderr is not None
        assert f"process {os.getpid()} is preparing this dataset: waiting for it" in job.stderr.readline()
        hidden.rename(prepared.folder)
    rest = job.stderr.read()
    job.stderr.close()
    assert job.wait() == 0
    assert "prepared before" in rest


def test_of_jobs_started_together_one_builds_and_all_get_it(tmp_path: Path) -> None:
    path = text_file(tmp_path, "text\n" * 50_000)
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "rankscope", "prepare", *overrides(tmp_path, paths=str(path))],
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    said = [job.communicate(timeout=120)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0]
    assert sum(text.count("rankscope: preparing") for text in said) == 1
    assert len(left_in(tmp_path)) == 1
