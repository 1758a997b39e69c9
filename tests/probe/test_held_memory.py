"""What a rank held on its GPU when its memory ran out: written by the probe, read from the page, told in facts."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.evidence.pages import read_page
from rankscope.probe import held_memory
from rankscope.probe.page import Page


class Tensor:
    """Stands for torch's, on a GPU."""

    is_cuda = True

    def __init__(self, shape: list[int], address: int) -> None:
        self.shape, self.dtype, self._address = shape, "torch.float32", address

    def untyped_storage(self) -> Any:
        size = 4 * self.shape[0]
        return SimpleNamespace(data_ptr=lambda: self._address, nbytes=lambda: size)


FRAMES = [
    {"filename": "/env/lib/python3.12/site-packages/torch/nn/functional.py", "line": 9, "name": "linear"},
    {"filename": "/job/train.py", "line": 45, "name": "main"},
]
OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    snapshot = {
        "segments": [
            {
                "blocks": [
                    {"state": "inactive", "size": 999, "frames": []},
                    {
                        "state": "active_allocated",
                        "size": 512,
                        "requested_size": 500,
                        "frames": FRAMES,
                    },
                    {"state": "active_allocated", "size": 100, "frames": FRAMES},
                ]
            }
        ]
    }
    cuda = SimpleNamespace(
        memory_allocated=lambda: 5000,
        memory_reserved=lambda: 6000,
        memory=SimpleNamespace(_snapshot=lambda: snapshot),
    )
    fake = SimpleNamespace(Tensor=Tensor, cuda=cuda, _C=SimpleNamespace(_cuda_isHistoryEnabled=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_tensors_are_counted_by_kind_and_each_storage_once(tmp_path: Path) -> None:
    held = [Tensor([100], 1), Tensor([100], 2), Tensor([100], 2), Tensor([1000], 3)]
    page = Page(str(tmp_path / "0.page"), 0)
    held_memory.note(page, OutOfMemoryError("CUDA out of memory."))
    found = read_page(tmp_path / "0.page").progress.held
    assert found is not None
    assert (found.allocated, found.reserved, found.in_python) == (5000, 6000, 4800)
    assert [(each.count, each.kind, each.bytes) for each in found.tensors] == [
        (1, "[1000] float32", 4000),
        (2, "[100] float32", 800),
    ]
    assert len(held) == 4


def test_torchs_own_history_names_the_lines_of_the_program(tmp_path: Path) -> None:
    page = Page(str(tmp_path / "0.page"), 0)
    held_memory.note(page, OutOfMemoryError("CUDA out of memory."))
    found = read_page(tmp_path / "0.page").progress.held
    assert found is not None
    assert found.lines == (("/job/train.py", 45, 600),)


def test_an_error_that_came_of_it_counts_and_another_does_not(tmp_path: Path) -> None:
    page = Page(str(tmp_path / "0.page"), 0)
    held_memory.note(page, ValueError("something else"))
    assert read_page(tmp_path / "0.page").progress.held is None
    wrapper = RuntimeError("training failed")
    wrapper.__cause__ = OutOfMemoryError("CUDA out of memory.")
    held_memory.note(page, wrapper)
    assert read_page(tmp_path / "0.page").progress.held is not None
