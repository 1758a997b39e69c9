"""Interruptions at bad moments, stopped ranks, full disks: the end is quick, and says what it returns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import COMMAND, Rankscope, kill, wait_until

GRACEFUL = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
print("running", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("wait_s", [0.05, 0.2, 0.6, 1.2, 1.8, 2.4, 3.0, None])
def test_a_signal_is_never_a_success_whenever_it_comes(
    rankscope: Rankscope, number: signal.Signals, wait_s: float | None
) -> None:
    """Also where the ranks end with 0 on it."""
    started = rankscope.start(rankscope.script(GRACEFUL))
    if wait_s is None:
        started.shows("running")
    else:
        time.sleep(wait_s)
    started.process.send_signal(number)
    ended = started.wait(60.0)
    said = ended.err.decode()
    assert ended.code == 128 + number, said
    # Until our first function runs, which takes longer than the first of the waits on a busy machine, Python answers.
    assert "Traceback" not in said or "rankscope/start.py" not in said, said
    verdict = ended.run_dir / "verdict.json"
    if verdict.exists():
        assert json.loads(verdict.read_bytes())["outcome"] == "interrupted", said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_folder_that_was_named_has_a_verdict_however_early_the_signal_comes(
    rankscope: Rankscope, number: signal.Signals
) -> None:
    """The first line names it; the ranks start a while after that."""
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as under nohup, and stays ignored")
    started = rankscope.start(rankscope.script(GRACEFUL), nproc=1)
    started.shows("1 rank")
    started.process.send_signal(number)
    ended = started.wait(60.0)
    assert ended.code == 128 + number, ended.err.decode()
    assert ended.verdict["outcome"] == "interrupted"
    assert f"stopped by {number.name}" in ended.verdict["headline"]
    assert f"rankscope: {number.name}: " in ended.err.decode()
    assert not (ended.run_dir / ".reserve").exists()


@pytest.mark.slow
def test_a_signal_just_as_the_ranks_start_is_told_as_what_it_is(rankscope: Rankscope) -> None:
    """Torch has handlers of its own in place there."""
    for _ in range(4):
        started = rankscope.start(rankscope.script(GRACEFUL), nproc=1)
        wait_until((started.run_dir / "logs" / "attempt_0").exists, 30.0)
        started.process.send_signal(signal.SIGTERM)
        ended = started.wait(60.0)
        assert ended.code == 143, ended.err.decode()
        assert "stopped by SIGTERM" in ended.verdict["headline"]


STUCK = """
import os, sys, time
print("running", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
if os.environ["RANK"] == "0":
    sys.exit(3)
time.sleep(1000)
"""


@pytest.mark.slow
def test_a_stopped_rank_does_not_delay_the_end_of_a_failing_job(rankscope: Rankscope, tmp_path: Path) -> None:
    go = tmp_path / "go"
    started = rankscope.start(rankscope.script(STUCK), go)
    started.shows("R0:running", "R1:running")
    kill(started.ranks()[1], signal.SIGSTOP)
    begun = time.monotonic()
    go.touch()
    ended = started.wait(60.0)
    assert ended.code == 3, ended.err.decode()
    assert time.monotonic() - begun < 15


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
def test_a_full_disk_does_not_cost_the_verdict(rankscope: Rankscope, small_disk: Path) -> None:
    script = rankscope.script("""
        import os, sys
        with open(os.path.join(sys.argv[1], "checkpoint"), "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 512)
            except OSError:
                pass
        raise ValueError("the disk is full, and this is why")
    """)
    run = small_disk / "run"
    started = rankscope.command(*COMMAND, "run", "--nproc-per-node", 1, "--run-dir", run, script, small_disk)
    ended = started.wait()
    assert ended.code == 1
    verdict = json.loads((run / "verdict.json").read_bytes())
    assert "the disk is full, and this is why" in verdict["headline"]
    assert not (run / ".reserve").exists()


@pytest.mark.slow
def test_where_not_even_the_reserve_helps_the_verdict_is_kept_elsewhere(rankscope: Rankscope, tmp_path: Path) -> None:
    script = rankscope.script("""
        import os, shutil, sys
        shutil.rmtree(sys.argv[1])
        open(sys.argv[1], "w").close()
        raise ValueError("a program that removes its folder")
    """)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = tmp_path / "run"
    command = (*COMMAND, "run", "--nproc-per-node", 1, "--run-dir", run, script, run)
    ended = rankscope.command(*command, env={"TMPDIR": str(elsewhere)}).wait()
    (kept,) = elsewhere.glob("rankscope-*-verdict-*.json")
    assert "a program that removes its folder" in json.loads(kept.read_bytes())["headline"]
    assert str(kept) in "".join(ended.err.decode().split())


@pytest.mark.slow
def test_nothing_is_left_in_the_temporary_folder(rankscope: Rankscope, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    ended = rankscope.run(rankscope.script("print('hello')"), env={"TMPDIR": str(temporary)})
    assert ended.code == 0
    assert os.listdir(temporary) == []
    assert tempfile.gettempdir() != str(temporary)


INTERRUPTED = """
import sys
from rankscope.start import main

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "rankscope.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
sys.exit(main())
"""


def test_ctrl_c_during_the_first_imports_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "rankscope: interrupted\n")
