"""The run's folder: at places that others have prepared, on full disks, and seen from programs that go elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from conftest import COMMAND, Rankscope

AWAY = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    os.makedirs("outputs", exist_ok=True)
    os.chdir("outputs")
    raise RuntimeError("the learning rate is negative")

main()
"""


@pytest.mark.slow
def test_a_program_that_changes_its_folder_still_leaves_its_error_file(rankscope: Rankscope) -> None:
    script = rankscope.script(AWAY)
    started = rankscope.command(*COMMAND, "run", "--nproc-per-node", 1, "--run-dir", "here", script)
    ended = started.wait()
    run = rankscope.folder / "here"
    verdict = json.loads((run / "verdict.json").read_bytes())
    assert verdict["outcome"] == "crash", ended.err.decode()
    assert "the learning rate is negative" in verdict["headline"]
    told = json.loads((run / "logs/attempt_0/0/error.json").read_bytes())
    assert "the learning rate is negative" in told["message"]["message"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_nothing_is_written_through_links_that_another_user_laid(rankscope: Rankscope, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    precious = lay_links(folder, "run.json", "verdict.json", "stages.log", "ranks.json", "logs", "evidence")
    os.chown(folder, 4321, 4321)
    script = rankscope.script("print('ran')")

    started = rankscope.command(*COMMAND, "run", "--nproc-per-node", 1, "--run-dir", folder, script)
    ended = started.wait()

    assert ended.code == 2
    assert ended.err.decode() == (
        f"rankscope: the run folder '{folder}' belongs to user 4321: nothing is written there. "
        "Give one with --run-dir that is yours, or that does not exist yet\n"
    )
    assert {path.read_text() for path in precious} == {"do not lose this"}


def lay_links(folder: Path, *names: str) -> list[Path]:
    """Makes the folder, with links of these names; gives what they lead to."""
    folder.mkdir()
    led_to = [folder.with_name(f"precious {name}") for name in names]
    for name, path in zip(names, led_to, strict=True):
        path.write_text("do not lose this")
        (folder / name).symlink_to(path)
    return led_to


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's link")
def test_a_link_that_another_user_laid_is_no_run_folder(rankscope: Rankscope, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "mine")
    os.lchown(link, 4321, 4321)
    script = rankscope.script("print('ran')")
    ended = rankscope.command(*COMMAND, "run", "--nproc-per-node", 1, "--run-dir", link, script).wait()
    assert ended.code == 2
    assert "is a link that user 4321 made" in ended.err.decode()
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_a_link_in_another_users_folder_is_no_run_folder_whoever_laid_it(rankscope: Rankscope, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    theirs = folder_of_another(tmp_path)
    (theirs / "link").symlink_to(tmp_path / "mine")
    script = rankscope.script("print('ran')")
    ended = rankscope.command(*COMMAND, "run", "--nproc-per-node", 1, "--run-dir", theirs / "link", script).wait()
    assert ended.code == 2
    assert "is a link, where other users may lay another one" in ended.err.decode()
    assert list((tmp_path / "mine").iterdir()) == []


FAILS_WHEN_TOLD = """
import pathlib, sys, time
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    print("at work", flush=True)
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
    raise ValueError("the data is gone")

main()
"""


def folder_of_another(place: Path, name: str = "theirs") -> Path:
    theirs = place / name
    theirs.mkdir()
    os.chown(theirs, 4321, 4321)
    return theirs


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
@pytest.mark.parametrize("wanted", [True, False], ids=["--run-dir", "runs/"])
def test_a_run_folder_that_another_user_exchanges_for_a_link_is_written_to_wherever_it_is(
    rankscope: Rankscope, tmp_path: Path, wanted: bool
) -> None:
    theirs, told = folder_of_another(tmp_path, "theirs" if wanted else "runs"), tmp_path / "told"
    victim = tmp_path / "victim"
    names = ("verdict.json", "report.html", "run.json", "logs/attempt_0/0/error.json", "evidence/keep")
    for name in names:
        (victim / name).parent.mkdir(parents=True, exist_ok=True)
        (victim / name).write_text("do not lose this")
    options = ("--run-dir", theirs / "r") if wanted else ()
    script = rankscope.script(FAILS_WHEN_TOLD)
    started = rankscope.command(
        *COMMAND, "run", "--nproc-per-node", 1, "--max-restarts", 1, "--comm-debug", *options, script, told
    )
    started.shows("at work")

    (run,) = theirs.iterdir()
    away = run.with_name("away")
    run.rename(away)
    run.symlink_to(victim)
    told.touch()
    ended = started.wait()

    assert ended.code != 0
    assert f"all of it is in '{away}'" in " ".join(ended.err.decode().split())
    assert f"rankscope diagnose {away.relative_to(tmp_path)}" in ended.err.decode()  # shown as seen from there
    assert sorted(str(path.relative_to(victim)) for path in victim.rglob("*") if path.is_file()) == sorted(names)
    assert {(victim / name).read_text() for name in names} == {"do not lose this"}
    assert "the data is gone" in json.loads((away / "verdict.json").read_bytes())["headline"]
    assert "the data is gone" in (away / "report.html").read_text()
    for attempt in (0, 1):
        assert "the data is gone" in (away / f"logs/attempt_{attempt}/0/error.json").read_text()
    assert {oct(path.stat().st_mode & 0o777) for path in [away, *away.rglob("*")] if path.is_dir()} == {"0o700"}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_a_folder_that_a_group_shares_is_as_good_as_any_other(rankscope: Rankscope, tmp_path: Path) -> None:
    shared = tmp_path / "project"
    shared.mkdir()
    os.chown(shared, 4321, 100)
    shared.chmod(0o2775)
    script, told = rankscope.script(FAILS_WHEN_TOLD), tmp_path / "told"
    told.touch()
    run = shared / "runs" / "first"
    for _ in range(2):
        started = rankscope.command(*COMMAND, "run", "--nproc-per-node", 1, "--run-dir", run, script, told)
        ended = started.wait()
        assert ended.code != 0
        assert "moved the run folder" not in ended.err.decode()
        assert "project/runs/first/report.html" in ended.err.decode()
        assert "/proc/" not in ended.err.decode() + (run / "verdict.json").read_text()
        assert "the data is gone" in (run / "logs/attempt_0/0/error.json").read_text()
    assert (shared / "runs" / "first.1" / "verdict.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [["run.json"], ["verdict.json", "stages.log", "ranks.json", "environment.json"]],
    ids=["an earlier run", "no run"],
)  # a folder with the first one is moved aside, and the others are never met
def test_links_in_our_own_folder_are_not_followed_either(
    rankscope: Rankscope, tmp_path: Path, names: list[str]
) -> None:
    folder = tmp_path / "ours"
    precious = lay_links(folder, *names)
    script = rankscope.script("print('ran')")
    ended = rankscope.command(*COMMAND, "run", "--nproc-per-node", 1, "--run-dir", folder, script).wait()
    assert ended.code == 0, ended.err.decode()
    assert {path.read_text() for path in precious} == {"do not lose this"}
