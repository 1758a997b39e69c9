"""What stands before a rank's lines can be said with --prefix: rank, local rank, physical GPU, host."""

from __future__ import annotations

import socket

import pytest

from conftest import Rankscope
from rankscope.errors import UsageError
from rankscope.launch.logs import physical_gpu
from rankscope.launch.options import parse


@pytest.mark.parametrize(
    ("own", "ours", "gpu"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "4,6"}, "6"),
        ({"CUDA_VISIBLE_DEVICES": "7"}, {"CUDA_VISIBLE_DEVICES": "4,7"}, "7"),
        ({}, {}, None),
        ({}, {"CUDA_VISIBLE_DEVICES": "4"}, None),
    ],
    ids=["of all", "its own alone", "none is set", "fewer than ranks"],
)
def test_the_physical_number_is_that_of_the_visible_devices(
    own: dict[str, str], ours: dict[str, str], gpu: str | None
) -> None:
    assert physical_gpu(1, own, ours) == gpu


def test_an_unknown_field_is_a_mistake() -> None:
    with pytest.raises(UsageError, match=r"write \{rank\}, \{local_rank\}, \{gpu\} or \{host\}"):
        parse(["--prefix", "{node}: ", __file__])


@pytest.mark.slow
def test_every_line_has_it(rankscope: Rankscope) -> None:
    script = rankscope.script("import os; print('here')")
    ended = rankscope.run("--prefix", "{host}/GPU{gpu}/r{rank}: ", script, env={"CUDA_VISIBLE_DEVICES": "4,6"})
    host = socket.gethostname()
    shown = [line for line in ended.lines() if line.endswith("here")]
    assert sorted(shown) == [f"{host}/GPU4/r0: here", f"{host}/GPU6/r1: here"]
