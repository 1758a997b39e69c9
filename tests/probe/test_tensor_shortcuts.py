"""What the shortcuts read of losses and gradients by themselves, and what they leave to the functions in Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from rankscope.probe import parameters
from rankscope.probe.calls import CallRecorder
from rankscope.probe.finite import FiniteChecks
from rankscope.probe.page import Page
from rankscope.probe.phases import PhaseClock
from rankscope.probe.rhythm import Rhythm
from rankscope.probe.shortcuts import quick

LOSS = torch.ones(())

Reader = Callable[[torch.Tensor | None, torch.Tensor], bool]
"""Whether a shortcut is done with the own gradient of a pass with that loss, and leaves nothing to Python."""


@pytest.fixture
def reads(tmp_path: Path) -> Reader:
    return reader(tmp_path)


def reader(folder: Path, described: Any = torch.Tensor) -> Reader:
    if quick is None:
        pytest.skip("the shortcuts were not compiled: no compiler")
    page = Page(str(folder / "0-1.page"), 0)
    clock = PhaseClock(page)
    checks = FiniteChecks(page, clock)
    checks.start(torch)
    checks.looking = False
    clock.beat.watch(cast(Any, SimpleNamespace(Tensor=described)))
    rhythm = Rhythm(page, CallRecorder(page), cast(Any, SimpleNamespace()), clock, checks)
    left: list[Any] = []
    hook = quick.own_gradient(clock.beat, left.append)
    given: list[torch.Tensor | None] = []
    run = rhythm.backward(lambda _losses: hook((given[-1],)))

    def read(gradient: torch.Tensor | None, loss: torch.Tensor) -> bool:
        given.append(gradient)
        for _ in range(2):  # the first one from a line that is new
            left.clear()
            clock.beat.full = False
            run((loss,))
        return not left

    return read


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [1.0, math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("of", ["gradient", "loss"])
def test_good_numbers_are_told_from_bad_ones(reads: Reader, dtype: torch.dtype, value: float | None, of: str) -> None:
    number = torch.finfo(dtype).max if value is None else value
    values = torch.ones(5, 3, dtype=dtype)
    values[3, 1] = number
    read = reads(values, LOSS) if of == "gradient" else reads(torch.ones(3), torch.tensor(number, dtype=dtype))
    assert read is math.isfinite(number)


@pytest.mark.parametrize("gradient", [torch.ones(1, 3, 1), torch.ones(4, 3)[1:3], torch.ones(5)[1:4], torch.ones(())])
def test_numbers_in_a_row_are_read(reads: Reader, gradient: torch.Tensor) -> None:
    assert reads(gradient, LOSS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(100, 64), (1000, 64), (4096, 20), (64, 3, 7, 7), (2, 3000)])
def test_bad_row_or_column_of_a_large_gradient_shows(reads: Reader, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """The shortcut and Python read the same."""
    values = torch.ones(shape, dtype=dtype)
    rows = values.view(shape[0], -1)
    apart = -(-shape[0] // 256)
    cases = {
        "nothing": (slice(0, 0), slice(None), True),
        "a column": (slice(None), slice(-1, None), False),
        "a row that is read": (slice(apart * ((shape[0] - 1) // apart), None), slice(None), False),
        "what is not read": (slice(1, 2), slice(0, 1), True),
    }
    assert parameters.has_edges(values)
    for row, column, good in cases.values():
        rows.fill_(1.0)
        rows[row, column] = math.nan
        assert reads(values, LOSS) is good
        assert bool(parameters.edges(torch, values).isfinite().all()) is good


def test_part_of_a_tensor_is_all_that_is_read(reads: Reader) -> None:
    values = torch.tensor([math.nan, 1.0, 1.0, math.nan])
    assert reads(values[1:3], LOSS)
    assert not reads(values[:3], LOSS)
    assert not reads(values[1:], LOSS)


class Own(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "gradient",
    [
        torch.ones(5, 3).t(),
        torch.ones(1).expand(4),
        torch.ones(3).to_sparse(),
        torch.ones(3, device="meta"),
        torch.ones(3, dtype=torch.int32),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(0),
        torch.ones(65537),
        torch.ones(3).as_subclass(Own),
        None,
    ],
)
def test_what_cannot_be_read_is_left_to_python(reads: Reader, gradient: torch.Tensor | None) -> None:
    assert not reads(gradient, LOSS)


def test_loss_of_several_numbers_is_left_to_python(reads: Reader) -> None:
    assert not reads(torch.ones(3), torch.ones(2))


def test_what_stands_for_other_tensors_is_left_to_python(reads: Reader) -> None:
    def within(values: torch.Tensor) -> torch.Tensor:
        assert type(values) is torch.Tensor
        assert not reads(values, LOSS)
        return values

    torch.vmap(within)(torch.ones(2, 3))


@pytest.mark.parametrize("table", [None, "no table"])
def test_torch_that_does_not_describe_its_tensors_is_left_to_python(tmp_path: Path, table: str | None) -> None:
    members = {} if table is None else {"__dlpack_c_exchange_api__": table}
    tensor: Any = type("Tensor", (), members)
    assert not reader(tmp_path, tensor)(tensor(), tensor())
