"""Page folders: one that somebody holds stays, one that nobody holds any more is swept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Rankscope, kill, wait_until
from rankscope.launch import page_folder
from rankscope.launch.page_folder import PageFolder, make_page_folder, sweep


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path / "memory"
    base.mkdir()
    monkeypatch.setattr(page_folder, "MEMORY", str(base))
    return base


HOLDER = """
import os, pathlib, signal, sys
from rankscope.launch import page_folder
page_folder.MEMORY = sys.argv[1]
folder = page_folder.make_page_folder()
pathlib.Path(folder.path, "0.page").write_bytes(b"page")
child = os.fork() if "child" in sys.argv else 1
if child:
    os.write(1, f"{child}\\n".encode())
signal.pause()
"""


def start_holder(memory: Path, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """A process that holds a folder, and the pid of its forked child where it has one."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(memory), *arguments], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder.stdout:
        return holder, int(holder.stdout.readline())


def test_a_folder_that_is_held_stays_and_is_its_owners_alone(memory: Path) -> None:
    folder = make_page_folder()
    assert sweep(str(memory)) == []
    assert Path(folder.path).parent == memory
    assert Path(folder.path).stat().st_mode & 0o777 == 0o700
    os.close(folder.lock)


def test_a_folder_goes_when_its_holder_was_killed(memory: Path) -> None:
    holder, _ = start_holder(memory)
    (left,) = memory.iterdir()
    assert sweep(str(memory)) == []
    assert (left / "0.page").exists()
    holder.kill()
    holder.wait()
    assert sweep(str(memory)) == [str(left)]
    assert list(memory.iterdir()) == []


def test_a_folder_stays_as_long_as_any_of_its_processes_lives(memory: Path) -> None:
    holder, child = start_holder(memory, "child")
    holder.kill()
    holder.wait()
    try:
        assert sweep(str(memory)) == []
    finally:
        os.kill(child, signal.SIGKILL)
    assert wait_until(lambda: bool(sweep(str(memory))), 30)


def test_what_is_not_of_this_user_or_not_a_page_folder_is_left_alone(memory: Path, tmp_path: Path) -> None:
    others = [
        f"rankscope-{os.getuid() + 1}-pages-0123456789ab",
        f"rankscope-{os.getuid()}-0123456789ab",
        f"rankscope-{os.getuid()}-pages-0123456789abcd",
        "torch_1_2_3",
    ]
    for name in others:
        (memory / name).mkdir()
    (memory / f"rankscope-{os.getuid()}-pages-00000000000f").write_text("a file")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "model.pt").write_text("weights")
    (memory / f"rankscope-{os.getuid()}-pages-00000000000e").symlink_to(tmp_path / "precious")
    assert sweep(str(memory)) == []
    assert (tmp_path / "precious" / "model.pt").exists()
    assert len(list(memory.iterdir())) == len(others) + 2


def test_without_memory_the_folder_lies_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_folder, "MEMORY", str(tmp_path / "none"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder: PageFolder = make_page_folder()
    assert Path(folder.path).parent == tmp_path
    os.close(folder.lock)
    assert sweep(str(tmp_path / "none")) == []


@pytest.mark.slow
def test_the_next_run_sweeps_what_a_job_left_that_was_killed_as_a_whole(rankscope: Rankscope) -> None:
    script = rankscope.script(
        "import os, time\nprint('at', os.environ['RANKSCOPE_PAGES'], flush=True)\ntime.sleep(300)\n"
    )
    job = rankscope.start(script, nproc=1)
    job.shows("R0:at ")
    folder = Path(job.out.decode().partition("R0:at ")[2].splitlines()[0])
    assert list(folder.glob("*.page"))
    # All of it is stopped first, so that no process outlives another long enough to clean up.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in job.alive():
            kill(pid, number)
    assert wait_until(lambda: not job.alive(), 30)
    assert folder.exists()
    rankscope.run(rankscope.script("", "empty.py"), nproc=1)
    assert not folder.exists()
