"""Every fact about a run has its words; what the probe could not do is told beside the verdict."""

from __future__ import annotations

import pytest

from rankscope.diagnosis import facts
from rankscope.diagnosis.facts import FACTS, Fact, changed, run
from rankscope.diagnosis.probe_failures import probe_failures
from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import Evidence, Progress, RankEvidence
from rankscope.report.conclude import annotated, conclude
from rankscope.report.words import has_words, sentence

ABOUT_RUNS = [fact for fact in FACTS.values() if fact.__module__ == run.__name__]


@pytest.mark.parametrize("fact", ABOUT_RUNS, ids=facts.kind_of)
def test_fact_has_words(fact: type[Fact]) -> None:
    assert has_words(fact)


def test_words_of_ends() -> None:
    stuck = run.Meanwhile(run.FirstToFail(1, -9), 1, (0, 2), victims_failed=False)
    assert sentence(run.StoppedBySignal(2, stuck)) == (
        "the job was stopped by SIGINT. At that moment rank 1 ended first, by SIGKILL; ranks 0, 2 wait for it"
    )
    assert sentence(changed(stuck, victims=())) == "rank 1 ended first, by SIGKILL"
    assert sentence(run.EndedWell(3)) == "all 3 ranks ended well"
    assert sentence(run.UnusedLosses(2, 1)).startswith("rank 2 called backward once on a loss")


def progress(*errors: str) -> Progress:
    return Progress("step", 1000.0, 1, 1, 1000.0, 4, 0, (), (), probe_errors=errors)


def test_errors_of_the_probe_are_notes_of_the_verdict() -> None:
    ranks = tuple(
        RankEvidence(rank, rank, "node", 10 + rank, 1000.0, progress=progress("hook of all_reduce: KeyError: 'x'"))
        for rank in range(3)
    )
    verdict = conclude(Evidence(1, 1100.0, 1000.0, "still", 3, ranks))
    (note,) = [note for note in verdict.notes if "probe" in note]
    assert note == "rankscope's probe failed in ranks 0-2, the program did not: hook of all_reduce: KeyError: 'x'"


def test_same_error_of_many_ranks_is_one_fact_and_many_errors_are_few() -> None:
    same = probe_failures({rank: ("a", "a", "b") if rank else ("a",) for rank in range(4)})
    assert same == (run.ProbeFailed((0, 1, 2, 3), "a"), run.ProbeFailed((1, 2, 3), "b"))
    assert len(probe_failures({0: [f"error {number}" for number in range(40)]})) == 5
    assert probe_failures({0: (), 1: ()}) == ()


def test_notes_are_said_once_and_never_repeat_the_headline() -> None:
    verdict = Verdict(2, "ok", None, "proven", (), (), "all is well.", (), (), notes=("one",))
    assert annotated(verdict, ["two", "one", "all is well.", run.CameBack(3.0)]).notes == (
        "one",
        "two",
        "the job goes on after 3 s of stillness",
    )
