"""`rankscope check` alone keeps to a minute, in the order of what depends on what; named steps have all the time."""

from __future__ import annotations

import time

import pytest

from rankscope.checks import command
from rankscope.checks.command import STEPS, TOTAL_S, parse, run_steps
from rankscope.checks.model import Findings, Flaw

ORDER = ["basic", "limits", "storage", "network", "single", "ddp", "links", "imports"]


class Machine:
    """A machine on which every step takes its time by a clock of ours."""

    def __init__(self, patch: pytest.MonkeyPatch, seconds: dict[str, float], failing: str = "") -> None:
        self.now = 1000.0
        self.given: dict[str, float] = {}
        self._seconds = seconds
        self._failing = failing
        patch.setattr(time, "monotonic", lambda: self.now)
        patch.setattr(command, "_run", self._run)

    def _run(self, step: str, _chosen: object, _environment: object, left_s: float, imports_s: float) -> Findings:
        self.given[step] = imports_s if step == "imports" else left_s
        self.now += min(self._seconds.get(step, 1.0), self.given[step])
        return Findings(flaws=(Flaw("exception", "bad", "mend it"),)) if step == self._failing else Findings()


def test_steps_run_in_order_and_share_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {"basic": 8.0, "single": 20.0, "ddp": 100.0})
    report = run_steps(parse([]), {})
    assert list(machine.given) == [step for step in ORDER if step not in ("links", "imports")]
    assert machine.given["basic"] == TOTAL_S
    assert machine.given["ddp"] == TOTAL_S - 31.0
    assert report.seconds == TOTAL_S
    assert {step.step: step.status for step in report.steps if step.status != "pass"} == {
        "links": "fail",
        "imports": "fail",
    }
    assert not report.ok
    flaw = next(step for step in report.steps if step.step == "links").flaws[0]
    assert flaw.cause == "slow-rank"
    assert "rankscope check links" in flaw.fix


def test_imports_come_last_with_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {"single": 30.0, "imports": 999.0})
    report = run_steps(parse([]), {})
    assert list(machine.given) == ORDER
    assert machine.given["imports"] == command.QUICK_S - 36.0
    assert report.ok
    assert [step.step for step in report.steps] == list(STEPS)


def test_named_steps_and_ranks_of_a_launcher_have_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {"single": 500.0, "ddp": 500.0})
    assert run_steps(parse(["single", "ddp", "imports"]), {}).ok
    assert machine.given["ddp"] == float("inf")
    assert run_steps(parse([]), {"RANK": "0"}).ok
    assert machine.given["links"] == float("inf")


def test_what_depends_on_a_failed_step_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {}, failing="basic")
    report = run_steps(parse([]), {})
    assert "single" not in machine.given
    assert {step.step for step in report.steps if step.status == "skip"} == {"single", "ddp", "links"}
    assert not report.ok
