"""`check single --repeat`: a device that gives other bits for the same step is named."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from conftest import COMMAND
from rankscope.checks.command import parse
from rankscope.checks.repeat import Repeated, findings, repeat, step_on
from rankscope.errors import UsageError


def test_the_same_step_gives_the_same_bits_here() -> None:
    (made,) = repeat({"cpu": step_on("cpu")}, 0.2)
    assert made.times >= 2
    assert made.differing == ()
    found = findings((made,), 0.2)
    assert found.flaws == ()
    assert "the same bits" in found.facts[0]


def test_one_flipped_bit_is_seen_and_its_device_named() -> None:
    torch = pytest.importorskip("torch")
    times = iter(range(100))
    true, clock = step_on("cpu"), iter(range(100))

    def wrong() -> object:
        bits = true()
        if next(times) == 3:
            bits[17] ^= 1
        return bits

    made = repeat({"cuda:0": true, "cuda:1": wrong}, 4.0, lambda: float(next(clock)))  # type: ignore[dict-item]
    assert isinstance(true(), torch.Tensor)
    assert made == (Repeated("cuda:0", 5), Repeated("cuda:1", 5, ((4, 1),)))
    found = findings(made, 4.0)
    (flaw,) = found.flaws
    assert flaw.cause == "parameters-diverged"
    assert flaw.what.startswith("cuda:1 gave other bits for the same step in 1 of 5: repetition 4 in 1 values")


@pytest.mark.parametrize("words", [["--repeat"], ["basic", "--repeat", "5"], ["single", "--repeat", "soon"]])
def test_wrong_uses_get_one_line(words: list[str]) -> None:
    with pytest.raises(UsageError, match="repeat"):
        parse(words)


@pytest.mark.slow
def test_the_verb_repeats_a_step(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*COMMAND, "check", "single", "--repeat", "1", "--json"],
        cwd=tmp_path, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    (step,) = json.loads(ended.stdout)["steps"]
    assert (ended.returncode, step["status"]) == (0, "pass")
    assert any("the same bits" in fact for fact in step["facts"]), step
