"""Ranks of a host import one at a time, and a holder that dies holds nobody up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rankscope.evidence.pages import read_page
from rankscope.probe import bootstrap, import_lock

SITE = Path(bootstrap.__file__).parent / "site"

# A module that takes its time to import, under the name of one that does.
HEAVY = """
import os, time
with open(os.environ["ORDER"], "a") as order:
    order.write(f"begin {os.environ['RANK']}\\n")
    order.flush()
    while os.path.exists(os.environ["WAIT"]):
        time.sleep(0.01)
    order.write(f"end {os.environ['RANK']}\\n")
"""


def start(tmp_path: Path, rank: int) -> subprocess.Popen[bytes]:
    (tmp_path / "pages").mkdir(exist_ok=True)
    package = tmp_path / "packages"
    package.mkdir(exist_ok=True)
    (package / "jax.py").write_text(HEAVY)
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SITE), str(package)]),
        bootstrap.FOLDER_VARIABLE: str(tmp_path / "pages"),
        import_lock.VARIABLE: str(tmp_path / "pages" / "imports.lock"),
        "RANK": str(rank),
        "ORDER": str(tmp_path / "order"),
        "WAIT": str(tmp_path / "wait"),
    }
    return subprocess.Popen([sys.executable, "-c", "import jax"], env=variables)


def words(tmp_path: Path, pid: int) -> list[str]:
    path = tmp_path / "pages" / f"0-{pid}.page"
    if not path.exists():
        return []
    return [stage.words for stage in read_page(path).progress.stages if stage.kind == "lock"]


def wait_for(tmp_path: Path, pid: int, text: str) -> None:
    deadline = time.monotonic() + 60
    while not any(text in word for word in words(tmp_path, pid)):
        assert time.monotonic() < deadline, (text, words(tmp_path, pid))
        time.sleep(0.01)


def test_holder_that_is_killed_frees_the_others_and_they_go_one_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    holder = start(tmp_path, 0)
    wait_for(tmp_path, holder.pid, "LOCK: acquired! Starting initialization...")
    others = [start(tmp_path, 1), start(tmp_path, 2)]
    for other in others:
        wait_for(tmp_path, other.pid, f"LOCK: waiting for exclusive access... (rank 0, pid {holder.pid} holds it)")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    (tmp_path / "wait").unlink()
    for other in others:
        assert other.wait(60) == 0
        assert words(tmp_path, other.pid)[-2:] == ["LOCK: acquired! Starting initialization...", "LOCK: released"]
    order = (tmp_path / "order").read_text().split("\n")
    assert order[0] == "begin 0"
    rest = [line for line in order[1:] if line]
    assert rest in (["begin 1", "end 1", "begin 2", "end 2"], ["begin 2", "end 2", "begin 1", "end 1"])
