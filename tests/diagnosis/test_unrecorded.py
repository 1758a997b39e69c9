"""Where torch's recorder keeps nothing, the verdict says which calls it could not see."""

from __future__ import annotations

from factories import call, ended, evidence, frame, progress, rank

from rankscope.evidence.unrecorded import WHAT, unrecorded_calls
from rankscope.report.conclude import conclude

AT = frame("train.py", 12, "main")
PASSED = progress(call(0, "all_reduce", AT, seq=1))


def test_a_rank_that_came_out_of_a_collective_of_which_the_recorder_knows_nothing() -> None:
    missing = unrecorded_calls([rank(0, progress=PASSED), rank(1, progress=PASSED)])
    assert list(missing) == [WHAT]
    verdict = conclude(evidence(rank(0, progress=PASSED), rank(1, progress=PASSED), missing=missing))
    assert any(note.startswith(WHAT) for note in verdict.notes)


def test_nothing_is_missed_where_nothing_was_called_or_the_recorder_could_not_be_read() -> None:
    first = progress(call(0, "all_reduce", AT, seq=1, left=False))
    assert unrecorded_calls([rank(0, progress=first), rank(1, progress=None)]) == {}
    assert unrecorded_calls([rank(0, progress=PASSED, missing={"collectives": "no answer within 3 s"})]) == {}
    assert unrecorded_calls([rank(0, progress=PASSED, exit=ended(0))]) == {}
