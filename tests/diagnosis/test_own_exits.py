"""Programs that end themselves: what they had caught, logged, or lost a thread to."""

from __future__ import annotations

from typing import Any

import factories as make
import pytest
from ended_ranks import ALL_REDUCE, CLOSED, failed, origin, victim

from rankscope.diagnosis.rules.crashes.endings import explain_endings, explain_left
from rankscope.evidence.model import RaisedException, RankEvidence
from rankscope.report.words import headline, sentence

EXIT = (make.frame("train.py", 99, "main"),)
LOAD = make.frame("data.py", 22, "load")


def left(number: int, code: int, *errors: RaisedException, call: str = "sys.exit(1)", **fields: Any) -> RankEvidence:
    site = make.progress(exit_site=EXIT, exit_note=call)
    return make.rank(number, exit=make.ended(code), progress=site, exceptions=errors, **fields)


def of_thread(message: str = "bad", kind: str = "ValueError", at: float = make.NOW - 1) -> RaisedException:
    return RaisedException(kind, message, at, (LOAD,), "thread", "Thread-1 (train)")


@pytest.mark.parametrize(("source", "call", "code"), [("exit", "os._exit(3)", 3), ("output", "sys.exit(1)", 1)])
def test_the_line_of_what_it_had_caught_is_shown(source: str, call: str, code: int) -> None:
    finding = origin(left(0, code, make.raised("ValueError", "bad", LOAD, source=source), call=call), victim(1))
    assert (finding.cause, [each.cause for each in finding.alternatives]) == ("exit-code", ["exception"])
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 22
    assert (
        headline(finding.summary) == f"rank 0 ended itself with code {code} after ValueError in load (data.py:22): bad"
    )
    assert any(call in sentence(fact) and "train.py:99" in sentence(fact) for fact in finding.because)


def test_a_traceback_that_was_logged_long_before_has_nothing_to_do_with_the_end() -> None:
    logged = make.raised("ValueError", "bad", LOAD, source="output")
    chatter = tuple(f"step {n}" for n in range(40))
    finding = origin(left(0, 3, logged, error_tail=("ValueError: bad", *chatter)))
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 99
    assert finding.alternatives == ()


def test_raise_system_exit_over_a_logged_error_is_an_exit_of_its_own() -> None:
    """It leaves no site; that the probe saw the end and no uncaught exception tells it."""
    logged = make.raised("ValueError", "bad", LOAD, source="output")
    rank = make.rank(0, exit=make.ended(4), progress=make.progress(finalizing=True), exceptions=logged)
    finding = origin(rank)
    assert finding.cause == "exit-code"
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 22


@pytest.mark.parametrize("code", [0, 1])
def test_who_caught_a_lost_connection_and_ended_itself_is_a_victim(code: int) -> None:
    lost = make.raised("RuntimeError", CLOSED, ALL_REDUCE, LOAD, source="exit")
    endings = explain_endings(make.evidence(left(0, code, lost), failed(1, "ValueError", "bad"), victim(2)))
    assert endings.victims == (0, 2)
    assert endings.left == ()
    assert endings.origin is not None
    assert [culprit.rank for culprit in endings.origin.culprits] == [1]


def test_a_dead_thread_is_why_the_main_thread_ended() -> None:
    finding = origin(left(0, 1, of_thread()), victim(1))
    assert (finding.cause, finding.certainty) == ("exception", "likely")
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 22
    assert "ended thread Thread-1 (train) of rank 0" in sentence(finding.because[0])
    long_ago = origin(left(0, 1, of_thread(at=make.NOW - 600)))
    assert long_ago.cause == "exit-code"


def test_a_program_that_ends_well_although_its_thread_died_has_raised() -> None:
    rank = make.rank(1, exit=make.ended(0), progress=make.progress(), exceptions=of_thread())
    seen = make.evidence(rank, make.rank(0))
    finding = explain_left(rank, seen, (0,))
    endings = explain_endings(seen)
    assert (endings.left, endings.victims) == ((), ())
    assert endings.origin is not None
    assert (endings.origin.cause, endings.origin.culprits) == ("exception", finding.culprits)
    assert (finding.outcome, finding.cause, finding.certainty) == ("crash", "exception", "likely")
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 22
    assert [each.cause for each in finding.alternatives] == ["rank-left"]


def test_a_program_whose_thread_lost_the_connection_is_a_victim_though_it_ends_well() -> None:
    lost = RaisedException("RuntimeError", CLOSED, make.NOW - 1, (ALL_REDUCE, LOAD), "thread", "Thread-1")
    endings = explain_endings(make.evidence(make.rank(1, exit=make.ended(0), exceptions=lost), make.rank(0)))
    assert (endings.left, endings.victims) == ((), (1,))


def test_leaving_with_code_0_over_a_caught_error_is_placed_where_that_was_raised() -> None:
    rank = left(1, 0, make.raised("ValueError", "bad", LOAD, source="exit"), call="sys.exit(0)")
    finding = explain_left(rank, make.evidence(rank, make.rank(0)), (0,))
    assert finding.cause == "rank-left"
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 22
    stopped = left(1, 0, make.raised("KeyboardInterrupt", "", LOAD, source="exit"))
    at = explain_left(stopped, make.evidence(stopped, make.rank(0)), (0,)).culprits[0].where
    assert at is not None
    assert at.line == 99


def test_a_raised_system_exit_tells_which_branch_it_stands_in() -> None:
    source = "try:\n    work()\nexcept (ValueError, OSError) as error:\n    raise SystemExit(4) from error\n"
    finding = origin(make.rank(0, exit=make.ended(4)), source={"train.py": source})
    assert any(sentence(fact).endswith("train.py:4, in `except (ValueError, OSError)`") for fact in finding.because)
