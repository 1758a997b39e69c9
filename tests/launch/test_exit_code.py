"""The exit code of a run, rule by rule."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from run_events import verdict

from rankscope.diagnosis.verdict import Certainty, Outcome, Retry
from rankscope.launch.events import End, Reason
from rankscope.launch.exit_code import ELSEWHERE, FAILS_AGAIN, code_for_scheduler, exit_code

STOPPED = End(0, -15, 2.0, by_launcher=True)


def code(
    outcome: Outcome,
    *ends: End,
    stopped_for: Reason | None = None,
    signal: int | None = None,
    several: bool = False,
    elsewhere: dict[int, int | None] | None = None,
) -> int:
    """Rank 1 is the culprit."""
    said = replace(verdict(outcome), exit_codes=elsewhere or {})
    return exit_code(said, ends, stopped_for=stopped_for, signal=signal, several_nodes=several)


def test_run_whose_ranks_all_ended_with_0_ends_with_0() -> None:
    assert code("ok", End(0, 0), End(1, 0)) == 0
    assert code("nan", End(0, 0), End(1, 0)) == 0, "reported, and nothing was stopped"


def test_code_of_the_culprit_is_kept_though_a_victim_failed_first() -> None:
    assert code("crash", End(0, 1, 1.0), End(1, 42, 2.0)) == 42
    assert code("crash", End(0, 1, 1.0), End(1, -11, 2.0)) == 139


def test_culprit_that_left_with_0_leaves_the_code_of_the_first_victim() -> None:
    assert code("crash", End(0, 6, 3.0), End(1, 0, 1.0), End(2, 5, 2.0)) == 5


def test_culprit_that_failed_by_itself_while_the_run_was_stopped_keeps_its_code() -> None:
    assert code("crash", STOPPED, End(1, 3, 1.0), stopped_for="hang") == 3


def test_culprit_that_had_to_be_stopped_leaves_the_code_of_a_hang() -> None:
    assert code("crash", STOPPED, replace(STOPPED, rank=1), stopped_for="hang") == 75
    assert code("hang", STOPPED, End(1, 3, 1.0), stopped_for="hang") == 75
    assert code("hang", End(0, 0, by_launcher=True), End(1, 0, by_launcher=True), stopped_for="hang") == 75


@pytest.mark.parametrize("outcome", ["nan", "corrupt"])
def test_run_stopped_for_its_numbers_ends_with_76(outcome: Outcome) -> None:
    assert code(outcome, STOPPED, replace(STOPPED, rank=1), stopped_for="numbers") == 76


@pytest.mark.parametrize("final", [End(0, 0), STOPPED, End(0, 3)])
def test_run_that_a_signal_cut_short_ends_with_that_signal(final: End) -> None:
    assert code("interrupted", final, signal=15) == 143
    assert code("ok", End(0, 0), signal=2) == 130


def test_culprit_of_another_node_gives_its_code_to_all_nodes() -> None:
    assert code("crash", End(4, 1, 1.0), several=True, elsewhere={1: 9}) == 9
    assert code("crash", End(4, 0), several=True, stopped_for="failure", elsewhere={1: -9}) == 137


def test_run_of_which_nothing_is_known_does_not_end_with_0() -> None:
    assert code("unknown", STOPPED) == 1
    assert code("unknown") == 1


@pytest.mark.parametrize(
    ("cause", "retry", "certainty", "given", "told"),
    [
        ("collective-skipped", "no", "proven", 75, FAILS_AGAIN),
        ("collective-skipped", "no", "likely", 75, 75),
        ("exception", "no", "proven", 1, 1),  # it may be the data, or the moment
        ("comm-error", "elsewhere", "likely", 1, ELSEWHERE),
        ("killed", "yes", "proven", 137, 137),
        ("collective-skipped", "no", "proven", 0, 0),
    ],
)
def test_code_for_a_scheduler_says_what_the_verdict_says_of_another_attempt(
    cause: str, retry: Retry, certainty: Certainty, given: int, told: int
) -> None:
    said = replace(verdict("crash"), cause=cause, retry=retry, certainty=certainty)
    assert code_for_scheduler(said, given) == told


def test_code_of_a_run_that_somebody_stopped_stays() -> None:
    assert code_for_scheduler(replace(verdict("interrupted"), retry="elsewhere"), 130) == 130
