"""Functional collectives are recorded like those of c10d, and are left alone while a program is traced."""

# The functions that stand for torch's are there for their parameters' names.
# ruff: noqa: ARG001

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rankscope.evidence.pages import read_page
from rankscope.probe.calls import CallRecorder
from rankscope.probe.functional import record
from rankscope.probe.page import Page


class Tensor:
    dtype = "torch.float32"

    def numel(self) -> int:
        return 12


def all_reduce(self: Any, reduceOp: str, group: Any, tag: str = "") -> str:
    return f"{reduceOp} of all"


def broadcast(self: Any, src: int, group: Any, tag: str = "") -> str:
    raise ConnectionError("the peer has gone")


def all_gather_tensor(self: Any, gather_dim: int, group: Any, tag: str = "") -> str:
    return "gathered"


def wait_tensor(tensor: Any) -> Any:
    return tensor


@pytest.fixture
def module() -> ModuleType:
    made = ModuleType("functional_collectives")
    made.__dict__.update(
        all_reduce=all_reduce,
        broadcast=broadcast,
        all_gather_tensor=all_gather_tensor,
        wait_tensor=wait_tensor,
        tracing=False,
        _are_we_tracing=lambda: made.tracing,
        _resolve_group_name=lambda group: group if isinstance(group, str) else f"{group[0]}/{group[1]}",
    )
    return made


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(str(tmp_path / "0-1.page"), rank=0)


def test_group_operation_and_wait_are_on_the_page_and_the_result_is_torchs(page: Page, module: ModuleType) -> None:
    record(module, CallRecorder(page))
    assert module.all_reduce(Tensor(), "sum", "7") == "sum of all"
    assert module.all_gather_tensor(Tensor(), 0, group=("mesh", 1)) == "gathered"
    assert module.wait_tensor("result") == "result"
    calls = read_page(Path(page.path)).progress.calls
    assert [(call.op, call.group, call.seq) for call in calls] == [
        ("all_reduce", "7", 1),
        ("all_gather_into_tensor", "mesh/1", 1),
        ("Work.wait", "", 0),
    ]
    assert calls[0].numel == 12
    assert all(call.site[0].file == __file__ and call.left_at is not None for call in calls)


def test_a_failure_is_recorded_and_raised(page: Page, module: ModuleType) -> None:
    record(module, CallRecorder(page))
    with pytest.raises(ConnectionError, match="gone"):
        module.broadcast(Tensor(), 3, "0")
    [call] = read_page(Path(page.path)).progress.calls
    assert (call.op, call.peer, call.failed) == ("broadcast", 3, True)


def test_nothing_is_recorded_while_tracing(page: Page, module: ModuleType) -> None:
    record(module, CallRecorder(page))
    module.tracing = True  # type: ignore[attr-defined]
    assert module.all_reduce(Tensor(), "sum", "7") == "sum of all"
    assert read_page(Path(page.path)).progress.calls == ()


def test_a_group_that_cannot_be_named_does_not_fail_the_call(page: Page, module: ModuleType) -> None:
    record(module, CallRecorder(page))
    assert module.all_reduce(Tensor(), "sum", 5) == "sum of all"
    assert any("all_reduce" in error for error in read_page(Path(page.path)).progress.probe_errors)
