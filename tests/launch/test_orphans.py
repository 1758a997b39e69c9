"""Whoever of a job is killed with SIGKILL, at whatever moment: nothing of it is left, and the command ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import Rankscope, Started, kill, wait_until
from rankscope.launch.process_tree import kill_descendants

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EACH_KIND = 3
"""Rounds in which somebody of that kind is killed; with `--whole-zoo` twice as many."""
AT_ONCE = 2
SEED = 20240117
ENDS_WITHIN_S = 30.0
"""A failed rank is looked at before the others are stopped; jobs of other tests share the processors."""
GONE_WITHIN_S = 5.0

JOB = """
import multiprocessing, os, pathlib, sys, time

folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]

def note(name):
    part = folder / f"{name}-{rank}.part"
    part.write_text(str(os.getpid()))
    part.rename(folder / f"{name}-{rank}")

def load(name):
    note(name)
    time.sleep(300)

def daemonise():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note("daemon")
            time.sleep(300)
        os._exit(0)
    os.wait()

daemonise()
fork = multiprocessing.get_context("fork")
workers = [fork.Process(target=load, args=(name,), daemon=True) for name in ("first", "second")]
for worker in workers:
    worker.start()
note("rank")
while all(worker.is_alive() for worker in workers) and not (folder / "end").exists():
    time.sleep(0.05)
raise RuntimeError("a worker has ended")
"""
NOTES = [f"{name}-{rank}" for rank in (0, 1) for name in ("daemon", "first", "second", "rank")]

LOADER_JOB = """
import os, pathlib, sys, time
import torch.utils.data as data

folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]

class Samples(data.Dataset):
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        note = folder / f"first-{rank}"
        if not note.exists():
            note.with_suffix(".part").write_text(str(os.getpid()))
            note.with_suffix(".part").rename(note)
        time.sleep(0.01)
        return index

for batch in data.DataLoader(Samples(), batch_size=4, num_workers=2):
    pass
"""


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Round:
    """One job, and the pids of everyone in it."""

    def __init__(self, started: Started, folder: Path) -> None:
        self._started = started
        self._folder = folder
        ready = wait_until(lambda: all((folder / name).exists() for name in NOTES), 60.0)
        assert ready, f"the job did not start:\n{(started.out + started.err).decode(errors='replace')}"
        self.guard = started.process.pid
        self.launcher = parent(self.noted("rank-0"))
        self.warden = parent(self.launcher)

    def noted(self, name: str) -> int:
        return int((self._folder / name).read_text())

    def victims(self, kind: str) -> list[int]:
        either = random.Random(f"{SEED} {self._folder.name}").choice((0, 1))
        return {
            "guard": [self.guard],
            "launcher": [self.launcher],
            "warden and launcher": [self.warden, self.launcher],
            "guard and launcher": [self.guard, self.launcher],
            "rank": [self.noted(f"rank-{either}")],
            "both ranks": [self.noted("rank-0"), self.noted("rank-1")],
            "worker": [self.noted(f"first-{either}")],
            "daemon and rank": [self.noted(f"daemon-{either}"), self.noted(f"rank-{either}")],
        }[kind]


KINDS = [
    "guard", "launcher", "rank", "worker", "guard and launcher", "warden and launcher", "both ranks", "daemon and rank",
]  # fmt: skip


def kill_one(started: Started, folder: Path, kind: str, delay_s: float) -> str | None:
    """What went wrong, if anything."""
    job = Round(started, folder)
    assert len(started.alive()) >= 11  # guard, warden, launcher, 2 ranks, 4 workers, 2 daemons
    time.sleep(delay_s)  # The moment of the kill is part of what is tried.
    for pid in job.victims(kind):
        kill(pid, signal.SIGKILL)
    if not wait_until(lambda: started.process.poll() is not None, ENDS_WITHIN_S):
        return f"{kind}: the command goes on"
    code = started.process.returncode
    if not wait_until(lambda: not started.alive(), GONE_WITHIN_S):
        return f"{kind}: left behind {started.alive()}"
    # A killed rank is 137; a rank whose worker was killed fails by itself; nobody can return for a killed guard.
    expected = {"worker": 1, "guard": -9, "guard and launcher": -9}.get(kind, 137)
    return None if code == expected else f"{kind}: exit code {code} instead of {expected}"


def rounds(each_kind: int) -> Iterator[tuple[int, str, float]]:
    chance = random.Random(SEED)
    kinds = KINDS * each_kind
    chance.shuffle(kinds)
    for number, kind in enumerate(kinds):
        yield number, kind, chance.uniform(0.0, 0.5)


def test_kills_at_random_moments_leave_nothing_behind(rankscope: Rankscope, request: pytest.FixtureRequest) -> None:
    script = rankscope.script(JOB)
    each_kind = EACH_KIND * (2 if request.config.getoption("--whole-zoo") else 1)

    def play(number: int, kind: str, delay_s: float) -> str | None:
        folder = rankscope.folder / f"pids{number}"
        folder.mkdir()
        started = rankscope.start(script, folder)
        try:
            return kill_one(started, folder, kind, delay_s)
        finally:
            started.end()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda each: play(*each), rounds(each_kind)))
    assert [result for result in results if result is not None] == []
    assert len(results) == each_kind * len(KINDS)


HALF_DEAD = """
import ctypes, subprocess, threading, time
child = subprocess.Popen(["sleep", "300"])
threading.Thread(target=time.sleep, args=(300,)).start()
print(child.pid, flush=True)
SYS_exit = {"x86_64": 60, "aarch64": 93}[__import__("os").uname().machine]
ctypes.CDLL(None).syscall(SYS_exit, 0)
"""


def test_process_whose_first_thread_has_ended_hides_none_of_its_children() -> None:
    """The kernel shows it as a zombie while its other threads end; its children are still its own."""
    with subprocess.Popen([sys.executable, "-c", HALF_DEAD], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        stat = Path(f"/proc/{process.pid}/stat")
        assert wait_until(lambda: " Z " in stat.read_text(), 5.0)
        try:
            assert kill_descendants(os.getpid()) == []
            assert process.wait(5.0) == -signal.SIGKILL
            assert not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text()
        finally:
            kill(process.pid, signal.SIGKILL)
            kill(child, signal.SIGKILL)


@pytest.mark.parametrize("victim", ["worker", "launcher"])
def test_killed_loader_worker_or_launcher_of_a_real_loader(rankscope: Rankscope, victim: str) -> None:
    script = rankscope.script(LOADER_JOB)
    folder = rankscope.folder / "pids"
    folder.mkdir()
    started = rankscope.start(script, folder)
    assert wait_until(lambda: (folder / "first-0").exists() and (folder / "first-1").exists(), 60.0)
    worker = int((folder / "first-1").read_text())
    os.kill(worker if victim == "worker" else parent(parent(worker)), signal.SIGKILL)
    ended = started.wait(30.0, gone_within_s=GONE_WITHIN_S)
    if victim == "launcher":
        assert ended.code == 137
        return
    assert ended.code != 0
    (culprit,) = ended.verdict["culprits"]
    assert (culprit["rank"], culprit["process"]) == (1, "dataloader-worker")


def test_job_that_ends_well_takes_its_daemons_with_it(rankscope: Rankscope) -> None:
    script = rankscope.script(JOB.replace('raise RuntimeError("a worker has ended")', "os._exit(0)"))
    folder = rankscope.folder / "pids"
    folder.mkdir()
    started = rankscope.start(script, folder)
    Round(started, folder)
    (folder / "end").touch()
    assert started.wait(30.0, gone_within_s=GONE_WITHIN_S).code == 0
