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
@pytest.mark.parametrize("link", ["run.json", "verdict.json", "stages.log", "ranks.json", "logs", "evidence"])
def test_nothing_is_written_through_links_that_another_user_laid(
    rankscope: Rankscope, tmp_path: Path, link: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("do not lose this")
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / link).symlink_to(precious)
    os.chown(folder, 4321, 4321)
    script = rankscope.script("print('ran')")

    started = rankscope.command(*COMMAND, "run", "--nproc-per-node", 1, "--run-dir", folder, script)
    ended = started.wait()

    assert ended.code == 2
    assert ended.err.decode() == (
        f"rankscope: the run folder '{folder}' belongs to user 4321: nothing is written there. "
        "Give one with --run-dir that is yours, or that does not exist yet\n"
    )
    assert precious.read_text() == "do not lose this"


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
@pytest.mark.parametrize("name", ["run.json", "verdict.json", "stages.log", "ranks.json", "environment.json"])
def test_a_link_in_our_own_folder_is_not_followed_either(rankscope: Rankscope, tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("do not lose this")
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / name).symlink_to(precious)
    script = rankscope.script("print('ran')")
    ended = rankscope.command(*COMMAND, "run", "--nproc-per-node", 1, "--run-dir", folder, script).wait()
    assert ended.code == 0, ended.err.decode()
    assert precious.read_text() == "do not lose this"
