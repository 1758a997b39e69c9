"""Frames of a program that was installed like a library are the user's, wherever they were seen."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.evidence.installed_program import with_program
from rankscope.evidence.model import Frame, Progress, RaisedException, RankEvidence, StackSample, Thread

SITE = "/venv/lib/python3.11/site-packages/"
STEP = Frame("step", SITE + "trainer/loop.py", 7, False)
TORCH = Frame("barrier", SITE + "torch/distributed/distributed_c10d.py", 90, False)
MAIN = Frame("<module>", SITE + "trainer/__main__.py", 3, False)
RUNPY = Frame("_run_code", "<frozen runpy>", 88, False)
OWN = Frame("<module>", "/home/me/plugin.py", 1, True)


def rank(*frames: Frame) -> RankEvidence:
    stack = StackSample(1.0, (Thread(1, "", True, frames),), "py-spy")
    error = RaisedException("ValueError", "", None, (TORCH, STEP), "hook")
    return RankEvidence(0, 0, "", 1, 0.0, stacks=(stack,), exceptions=(error,), crash_stack=(STEP,))


def users(seen: RankEvidence) -> list[str]:
    frames = (*seen.stacks[0].threads[0].frames, *seen.exceptions[0].frames, *seen.crash_stack)
    return [frame.function for frame in frames if frame.user]


def test_the_outermost_module_of_a_stack_tells_the_program() -> None:
    assert users(with_program(rank(TORCH, STEP, MAIN, RUNPY))) == ["step", "<module>", "step", "step"]


def test_the_page_tells_it_where_stacks_do_not() -> None:
    seen = rank(TORCH, STEP)
    assert with_program(seen) is seen
    progress = Progress("", 0.0, 0, 0, 0.0, 0, 0, (), (), program=(SITE + "trainer/",))
    assert users(with_program(replace(seen, progress=progress))) == ["step", "step", "step"]


def test_a_package_that_runs_files_of_the_users_is_not_the_program() -> None:
    seen = rank(STEP, OWN, MAIN, RUNPY)
    assert with_program(seen) is seen
