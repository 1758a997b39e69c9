"""Memory options say what they set, and refuse what cannot work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankscope.errors import UsageError
from rankscope.launch import comm_debug, limits
from rankscope.probe import import_lock


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    files = ("NCCL_DEBUG_FILE", "NCCL_GRAPH_DUMP_FILE")
    for name in {*limits.LOW_MEMORY, *comm_debug._SETTINGS, *files, limits.LIMIT_VARIABLE, import_lock.VARIABLE}:
        monkeypatch.setenv(name, "to be put back")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("text", "size"), [("100G", 100 << 30), ("512M", 512 << 20), ("1.5 GB", 3 << 29), ("2gib", 2 << 30)]
)
def test_size_is_read(text: str, size: int) -> None:
    assert limits.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1G", "10", "1X"])
def test_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no amount of memory|is less than"):
        limits.parse_size(text)


def test_low_memory_sets_only_what_the_user_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_BUFFSIZE", "4194304")
    told = limits.set_low_memory()
    assert "NCCL_BUFFSIZE" not in told
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in told
    assert (os.environ["NCCL_BUFFSIZE"], os.environ["MALLOC_ARENA_MAX"]) == ("4194304", "2")


def test_imports_are_serialised_where_they_would_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "own_peak", lambda: 1 << 30)
    monkeypatch.setattr(limits, "free_memory", lambda: 4 << 30)
    assert limits.serialize_imports("auto", 4, tmp_path) is None
    assert import_lock.VARIABLE not in os.environ
    told = limits.serialize_imports("auto", 5, tmp_path)
    assert told is not None
    assert "takes 1.0 GB a rank and 4.0 GB are free" in told
    assert os.environ[import_lock.VARIABLE] == str(tmp_path / "imports.lock")
    assert limits.serialize_imports("off", 5, tmp_path) is None
    assert import_lock.VARIABLE not in os.environ


def test_what_the_probe_does_cannot_be_had_without_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave --no-probe out"):
        limits.serialize_imports("on", 2, None)
    with pytest.raises(UsageError, match="leave --no-probe out"):
        limits.set_memory_limit(1 << 30, probe=False)
    told = comm_debug.set_comm_debug(tmp_path)
    assert f"NCCL_DEBUG_FILE={tmp_path}/comm/nccl-%h-%p.log" in told
    assert (tmp_path / "comm").is_dir()


def test_own_peak_and_free_memory_are_those_of_this_machine() -> None:
    peak, free = limits.own_peak(), limits.free_memory()
    assert peak is not None
    assert free is not None
    assert 1 << 20 < peak < 1 << 40
    assert 0 < free < 1 << 50
