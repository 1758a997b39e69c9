"""The verdict on a full disk, and where it lies then."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from rankscope.launch import verdict_file
from rankscope.launch.verdict_file import VerdictFile
from rankscope.private_files import write_private


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    return run, other


def fill(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written there finds no room."""

    def refuse(path: Path, data: bytes) -> None:
        if path.parent == run:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_private(path, data)

    monkeypatch.setattr(verdict_file, "write_private", refuse)


def test_on_a_full_disk_it_lies_elsewhere_until_there_is_room_again(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by chaos: a copy stayed in the temporary folder though the verdict was where it belongs in the end."""
    run, other = folders
    notes: list[str] = []
    file = VerdictFile(run, notes.append)
    with monkeypatch.context() as full:
        fill(run, full)
        file.write(b"first")
    (kept,) = other.iterdir()
    assert kept.read_bytes() == b"first"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert notes == [f"{run / 'verdict.json'}: No space left on device; the verdict is in {kept}"]
    file.write(b"second")
    assert (run / "verdict.json").read_bytes() == b"second"
    assert list(other.iterdir()) == []
    assert len(notes) == 1


def test_the_room_that_was_kept_is_given_back(folders: tuple[Path, Path]) -> None:
    run, _ = folders
    file = VerdictFile(run, lambda _note: None)
    assert list(run.iterdir()) != []
    file.write(b"said")
    file.release()
    assert [path.name for path in run.iterdir()] == ["verdict.json"]
