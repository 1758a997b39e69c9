"""Which folders others can put something else in the place of, and what is held of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope import held_folders
from rankscope.held_folders import NotOurs, exchangeable, inside, inside_for_children, moved_to
from rankscope.private_files import make_held_folder, make_own_folder, write_private

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder in which anybody may rename what lies there."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    for name in list(held_folders._held):
        held_folders.let_go(Path(name))


@pytest.mark.parametrize(("mode", "theirs"), [(0o755, False), (0o757, True), (0o1777, False), (0o700, False)])
def test_who_may_write_to_the_folder_may_rename_in_it_unless_it_is_sticky(
    tmp_path: Path, mode: int, theirs: bool
) -> None:
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    folder.chmod(mode)
    assert exchangeable(folder / "run") is theirs
    assert exchangeable(folder / "below" / "run") is theirs


@only_root
@pytest.mark.parametrize(
    ("user", "group", "mode", "theirs"),
    [(0, 100, 0o2775, True), (0, 0, 0o775, False), (4321, 4321, 0o700, True), (4321, 4321, 0o1777, True)],
)
def test_a_shared_group_and_another_owner_may_rename_too(
    tmp_path: Path, user: int, group: int, mode: int, theirs: bool
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.chown(folder, user, group)
    folder.chmod(mode)
    assert exchangeable(folder / "run") is theirs


@only_root
def test_a_link_of_another_user_above_the_folder_can_be_laid_anew(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert not exchangeable(tmp_path / "link" / "run")
    os.lchown(tmp_path / "link", 4321, 4321)
    assert exchangeable(tmp_path / "link" / "run")


def test_a_held_folder_is_written_to_after_another_was_put_in_its_place(shared: Path) -> None:
    run, away = shared / "run", shared / "away"
    make_held_folder(run)
    assert moved_to(run) is None
    run.rename(away)
    run.mkdir()
    make_own_folder(run / "logs")
    write_private(run / "logs" / "kept", b"words")
    assert (away / "logs" / "kept").read_bytes() == inside(run / "logs" / "kept").read_bytes() == b"words"
    assert inside_for_children(run / "logs").samefile(away / "logs")
    assert list(run.iterdir()) == []
    assert moved_to(run) == away


def test_a_held_folder_that_was_removed_has_moved_nowhere(shared: Path) -> None:
    make_held_folder(shared / "run")
    (shared / "run").rmdir()
    assert moved_to(shared / "run") is None
    with pytest.raises(FileNotFoundError):
        write_private(shared / "run" / "verdict.json", b"{}")


def test_where_nobody_else_can_rename_names_are_used_as_they_are(tmp_path: Path) -> None:
    if exchangeable(tmp_path / "run"):
        pytest.skip("the tests' own folder lies in one that others write to")
    make_held_folder(tmp_path / "run")
    assert inside(tmp_path / "run" / "x") == tmp_path / "run" / "x"


def test_a_folder_that_was_exchanged_right_after_it_was_made_is_refused(shared: Path) -> None:
    (shared / "run").mkdir()
    (shared / "run" / "of another run").touch()
    with pytest.raises(NotOurs, match="exchanged"):
        held_folders.hold(shared / "run", new=True)


@only_root
def test_a_folder_of_another_user_is_never_held(shared: Path) -> None:
    (shared / "run").mkdir()
    os.chown(shared / "run", 4321, 4321)
    with pytest.raises(NotOurs, match="exchanged"):
        held_folders.hold(shared / "run", new=True)
    assert list((shared / "run").iterdir()) == []
