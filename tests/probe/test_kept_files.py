"""A program that closes all descriptors, ours among them, and opens its own files under their numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rankscope.evidence.pages import read_page
from rankscope.launch.environment import SITE
from rankscope.probe.signals import STACK_SIGNAL

CLOSINGS = {
    "closerange": "os.closerange(3, 2048)",
    "one by one": """
for fd in range(3, 2048):
    try:
        os.close(fd)
    except OSError:
        pass
""",
    "behind Python's back": """
import ctypes
for fd in range(3, 2048):
    ctypes.CDLL(None).close(fd)
import rankscope.probe.kept_files
rankscope.probe.kept_files.mind_all()  # what the next full step does
""",
}


def run(program: str, pages: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RANKSCOPE_PAGES": str(pages), "PYTHONPATH": f"{SITE}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("closing", CLOSINGS.values(), ids=CLOSINGS)
@pytest.mark.parametrize("ending", ["on request", "on a crash"])
def test_no_stack_is_written_into_a_file_of_the_program(tmp_path: Path, closing: str, ending: str) -> None:
    pages, folder = tmp_path / "pages", tmp_path / "work"
    pages.mkdir()
    folder.mkdir()
    then = f"os.kill(os.getpid(), {STACK_SIGNAL})" if ending == "on request" else "os.kill(os.getpid(), 11)"
    program = f"""
import os, sys
{closing}
files = [open(f"data-{{number}}", "w") for number in range(1200)]
for file in files:
    file.write("precious")
{then}
"""
    ended = run(program, pages, folder)
    assert ended.returncode == (0 if ending == "on request" else -signal.SIGSEGV), ended.stderr
    written = {file.read_text() for file in folder.glob("data-*")}
    assert written == ({"precious"} if ending == "on request" else {""})
    suffix = "stacks" if ending == "on request" else "fatal"
    (kept,) = pages.glob(f"*.{suffix}")
    assert "most recent call first" in kept.read_text()


@pytest.mark.parametrize("place", ["here", "in a forked child"])
def test_no_stack_is_written_into_a_file_that_the_program_puts_at_our_number(tmp_path: Path, place: str) -> None:
    pages, folder = tmp_path / "pages", tmp_path / "work"
    pages.mkdir()
    folder.mkdir()
    program = f"""
import os, sys
if {place == "here"} or os.fork() == 0:
    file = os.open("data", os.O_WRONLY | os.O_CREAT)
    for number in range(998, 1004):
        assert os.dup2(file, number, inheritable=False) == number
    for number in range(998, 1004):
        assert os.write(number, b"precious") == 8
    os.kill(os.getpid(), 11)
os.wait()
"""
    ended = run(program, pages, folder)
    assert ended.returncode == (-signal.SIGSEGV if place == "here" else 0), ended.stderr
    assert (folder / "data").read_bytes() == 6 * b"precious"
    (kept,) = pages.glob("*.fatal")
    assert "most recent call first" in kept.read_text()


def test_the_end_of_the_interpreter_closes_no_file_of_the_program(tmp_path: Path) -> None:
    pages, folder = tmp_path / "pages", tmp_path / "work"
    pages.mkdir()
    folder.mkdir()
    program = """
import os, sys
os.closerange(3, 2048)
# Kept by a module that is cleared late, and flushed only then.
sys.files = [open(f"data-{number}", "w") for number in range(40)]
for file in sys.files:
    file.write("precious")
"""
    ended = run(program, pages, folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert {file.read_text() for file in folder.glob("data-*")} == {"precious"}
    (page,) = pages.glob("*.page")
    assert read_page(page).progress.probe_errors == ()


def test_what_is_closed_while_the_interpreter_is_torn_down_is_closed_without_a_word(tmp_path: Path) -> None:
    """Objects that outlive the modules, such as connections of `multiprocessing`, close their descriptors last."""
    pages = tmp_path / "pages"
    pages.mkdir()
    ended = run(
        """
        import os, sys
        import rankscope.probe.kept_files as files
        closed = os.close
        vars(files).update(dict.fromkeys([name for name in vars(files) if not name.startswith("__")]))
        closed(os.open(os.devnull, os.O_RDONLY))
        """,
        pages,
        tmp_path,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
