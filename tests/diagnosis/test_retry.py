"""What would fail again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rankscope.diagnosis.retry import fails_alike, will_fail_again
from rankscope.diagnosis.verdict import Culprit, Retry, Verdict, Where


def crash(cause: str, retry: Retry, raised: str | None = None, line: int = 5) -> Verdict:
    where = Where("train.py", line, "main")
    return Verdict(
        schema=2,
        outcome="crash",
        cause=cause,
        certainty="proven",
        culprits=(Culprit(1, "vm", 1, "rank", where, ""),),
        victims=(),
        headline="",
        because=(),
        fix=(),
        facts=({"kind": "raised", "type": raised},) if raised else (),
        retry=retry,
    )


@pytest.mark.parametrize(
    ("verdict", "again"),
    [
        (crash("collective-skipped", "no"), True),
        (crash("killed", "yes"), False),
        (crash("comm-error", "elsewhere"), False),
        (crash("exit-code", "unknown"), False),
        (crash("exception", "no", "NameError"), True),
        (crash("exception", "no", "ValueError"), False),
        (crash("exception", "no", "ConnectionResetError"), False),
        (replace(crash("collective-skipped", "no"), certainty="likely"), False),
    ],
)
def test_only_what_stays_until_somebody_changes_it_fails_again(verdict: Verdict, again: bool) -> None:
    assert will_fail_again(verdict) is again


def test_exception_that_comes_again_at_the_same_line_will_come_a_third_time() -> None:
    first, other = crash("exception", "no", "ValueError"), crash("exception", "no", "ValueError", line=9)
    assert will_fail_again(first, [first])
    assert not will_fail_again(first, [other])
    assert not will_fail_again(first, [first, other])  # it got further in between


def test_failures_without_a_line_are_not_called_alike() -> None:
    nowhere = replace(crash("stalled", "unknown"), culprits=())
    assert not fails_alike(nowhere, [nowhere])
