"""What changes a model beside its optimizer is written down with its line."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from rankscope.evidence.model import Call
from rankscope.evidence.pages import read_page
from rankscope.probe.calls import CallRecorder
from rankscope.probe.page import Page
from rankscope.probe.rewrites import LEARNING_RATE, LOADS, watch_learning_rate, watch_loading


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(str(tmp_path / "0-1.page"), 0)


def written(page: Page) -> tuple[Call, ...]:
    content = read_page(Path(page.path)).progress
    assert content.probe_errors == ()
    return content.calls


def watched(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> ModuleType:
    """The method is put back after the test."""
    monkeypatch.setattr(owner, name, getattr(owner, name))
    return importlib.import_module(owner.__module__)


def test_a_state_that_is_loaded_is_a_moment_and_holds_no_other_call(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = CallRecorder(page)
    watch_loading(watched(monkeypatch, nn.Module, "load_state_dict"), calls)
    inner = calls.wrap_plain(lambda: None, "inner")

    class Model(nn.Linear):
        def _load_from_state_dict(self, *args: Any) -> None:
            inner()
            super()._load_from_state_dict(*args)

    model = Model(2, 2)
    assert str(model.load_state_dict(model.state_dict())) == "<All keys matched successfully>"
    made = written(page)
    assert [(call.op, call.note, call.depth) for call in made] == [(LOADS, "Model", 0), ("inner", "", 0)]
    assert made[0].left_at is not None
    assert [frame.file for frame in made[0].site[:1]] == [__file__]


def test_only_a_rate_that_changed_is_noted(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    watch_learning_rate(watched(monkeypatch, plateau, "step"), CallRecorder(page))
    scheduler = plateau(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.5), factor=0.1, patience=1)
    for loss in (1.0, 0.5, 0.5, 0.5, 0.5):
        scheduler.step(loss)
    assert [(call.op, call.note) for call in written(page)] == [(LEARNING_RATE, "0.5 to 0.05")]
