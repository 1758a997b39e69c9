"""Tests of the machine: torch and CUDA, imports one by one, one GPU."""

from __future__ import annotations

import json

import pytest

from conftest import COMMAND, Rankscope

ROW = "2.4"
COMMAND_LINE = "rankscope check basic imports single"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["basic", "imports", "single"])
def test_each_step_can_be_asked_for_alone(rankscope: Rankscope, step: str) -> None:
    ended = rankscope.command(*COMMAND, "check", step, "--json").wait(200, gone_within_s=20)
    found = json.loads(ended.out)
    assert [(each["step"], each["status"]) for each in found["steps"]] == [(step, "pass")], ended.out.decode()
    assert ended.code == 0, ended.err.decode()
