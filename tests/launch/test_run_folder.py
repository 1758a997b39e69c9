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
