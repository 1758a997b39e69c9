"""Torch's worker server is asked for the flight record, except of a process that is just leaving."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rankscope.evidence import worker_socket
from rankscope.probe.page import FINALIZING, Page


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []

    def answer(path: str) -> bytes:
        paths.append(path)
        return b'{"version": "2.10", "entries": []}'

    monkeypatch.setattr(worker_socket, "read_worker_socket", answer)
    return paths


def served_page(folder: Path) -> Page:
    page = Page(str(folder / "0-77.page"), 0)
    (folder / "0-77.torch.sock").touch()
    return page


def test_rank_at_work_is_asked(tmp_path: Path, asked: list[str]) -> None:
    served_page(tmp_path)
    assert not isinstance(worker_socket.read_recorder(tmp_path / "0-77.page"), str)
    assert asked == [str(tmp_path / "0-77.torch.sock")]


def test_rank_that_just_left_its_program_is_not_asked(tmp_path: Path, asked: list[str]) -> None:
    page = served_page(tmp_path)
    page.raise_flag(FINALIZING)
    page.stage("exiting")
    answer = worker_socket.read_recorder(tmp_path / "0-77.page")
    assert answer == "the process is ending: its worker server is no longer asked"
    assert asked == []


def test_rank_that_hangs_on_its_way_out_is_asked(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = served_page(tmp_path)
    page.raise_flag(FINALIZING)
    page.stage("exiting")
    later = time.time() + 10
    monkeypatch.setattr(time, "time", lambda: later)
    worker_socket.read_recorder(tmp_path / "0-77.page")
    assert len(asked) == 1


def test_process_without_a_server_says_so(tmp_path: Path) -> None:
    Page(str(tmp_path / "0-77.page"), 0)
    answer = worker_socket.read_recorder(tmp_path / "0-77.page")
    assert answer == "the process group is not set up, or this torch has no worker server"
    assert worker_socket.read_recorder(None) == "no probe in the process"
