"""Bad numbers: where they began, who only got them, and replicas that differ."""

from __future__ import annotations

import factories as make
import pytest

from rankscope.diagnosis.facts import FACTS
from rankscope.diagnosis.facts import numbers as facts
from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import Checksum, Evidence, Group, NonFinite, RankEvidence, Stage
from rankscope.report.conclude import conclude
from rankscope.report.words import has_words

BACKWARD = make.frame("train.py", 50, "main")
STEP = make.frame("train.py", 51, "main")


def noted(
    kind: str, step: int = 12, *, local: bool = True, value: str = "nan", names: tuple[str, ...] = ()
) -> NonFinite:
    site = STEP if kind == "parameter" else BACKWARD
    return NonFinite(kind, step, make.NOW - 2, value, names, len(names), local, "", (site,))


def rank(number: int, *notes: NonFinite, **fields: object) -> RankEvidence:
    progress = make.progress(steps=20, non_finite=notes, world=3)
    return make.rank(number, make.stack("train.py", 40, "main"), progress=progress, **fields)


def blamed(verdict: Verdict) -> list[int | None]:
    return [culprit.rank for culprit in verdict.culprits]


def running(*ranks: RankEvidence) -> Evidence:
    return make.evidence(*ranks, trigger="non-finite")


def test_rank_whose_input_was_bad_is_named_and_the_others_are_victims() -> None:
    verdict = conclude(
        running(
            rank(0, noted("gradient", local=False)), rank(1, noted("input")), rank(2, noted("gradient", local=False))
        )
    )
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("nan", "nan-input", "proven")
    assert blamed(verdict) == [1]
    assert verdict.victims == (0, 2)
    assert verdict.culprits[0].where is not None
    assert verdict.culprits[0].where.line == 50
    assert verdict.detected_after_s == pytest.approx(2.0)
    assert verdict.fix
    assert verdict.references


def test_bad_input_of_one_rank_outweighs_bad_losses_of_others_in_the_same_step() -> None:
    verdict = conclude(running(rank(0, noted("loss")), rank(1, noted("input")), rank(2, noted("loss"))))
    assert verdict.cause == "nan-input"
    assert blamed(verdict) == [1]


def test_input_that_was_looked_at_a_step_late_names_its_rank_and_is_not_proven() -> None:
    late = noted("parameter", 13, local=False)
    verdict = conclude(running(rank(0, late), rank(1, noted("input", 12, value="inf"), late), rank(2, late)))
    assert (verdict.cause, verdict.certainty) == ("nan-input", "likely")
    assert blamed(verdict) == [1]
    assert verdict.victims == (0, 2)
    assert verdict.headline.startswith("the input of rank 1 held inf after 12 optimizer steps, in main (train.py:50)")
    assert any("rank 1 still had its inputs" in reason for reason in verdict.because)


def test_input_counts_before_what_the_same_rank_noted_of_that_step_later() -> None:
    momentum = noted("gradient", 12, local=False)
    verdict = conclude(running(rank(0, momentum), rank(1, momentum, noted("input", 12)), rank(2, momentum)))
    assert (verdict.cause, verdict.certainty, blamed(verdict)) == ("nan-input", "likely", [1])


def test_earlier_step_counts_whoever_was_read_first() -> None:
    verdict = conclude(running(rank(0, noted("parameter", 13, local=False)), rank(1), rank(2, noted("gradient", 12))))
    assert verdict.cause == "nan-gradient"
    assert blamed(verdict) == [2]
    assert verdict.victims == (0,)


def test_gradient_that_was_only_seen_reduced_names_nobody() -> None:
    verdict = conclude(running(*(rank(number, noted("gradient", local=False)) for number in range(3))))
    assert (verdict.cause, verdict.certainty) == ("nan-gradient", "likely")
    assert verdict.culprits == ()
    assert verdict.victims == (0, 1, 2)


def test_rank_that_is_alone_with_a_bad_gradient_is_named() -> None:
    verdict = conclude(running(rank(0), rank(1, noted("gradient", local=False)), rank(2)))
    assert blamed(verdict) == [1]
    blind = make.rank(0, make.stack("train.py", 40, "main"))
    assert conclude(running(blind, rank(1, noted("gradient", local=False)), rank(2))).culprits == ()


def test_parameters_that_overflow_on_all_ranks_name_all_of_them() -> None:
    notes = [rank(number, noted("parameter", local=False, value="inf", names=("0.weight",))) for number in range(3)]
    verdict = conclude(running(*notes))
    assert (verdict.cause, verdict.certainty) == ("nan-parameter", "likely")
    assert blamed(verdict) == [0, 1, 2]
    assert [each.cause for each in verdict.alternatives] == ["nan-gradient"]
    assert "0.weight" in " ".join(verdict.because)


def test_nan_in_the_parameters_of_all_ranks_came_with_a_gradient_and_names_nobody() -> None:
    notes = [rank(number, noted("parameter", local=False, value="nan", names=("head.weight",))) for number in range(3)]
    verdict = conclude(running(*notes))
    assert (verdict.cause, verdict.certainty, verdict.culprits) == ("nan-gradient", "likely", ())
    assert verdict.victims == (0, 1, 2)
    assert [each.cause for each in verdict.alternatives] == ["nan-parameter"]
    assert "head.weight" in " ".join(verdict.because)
    alone = conclude(running(rank(0), notes[1], rank(2)))
    assert (alone.cause, blamed(alone)) == ("nan-parameter", [1])


def test_parameters_bad_before_the_first_step_are_a_matter_of_initialisation() -> None:
    verdict = conclude(running(rank(0), rank(1, noted("parameter", 0, local=False)), rank(2)))
    assert (verdict.cause, verdict.certainty) == ("nan-parameter", "proven")
    assert blamed(verdict) == [1]
    assert "initialise" in verdict.fix[0]


def test_loss_that_is_bad_on_all_ranks_at_once_is_everybodys() -> None:
    verdict = conclude(running(*(rank(number, noted("loss", value="inf")) for number in range(3))))
    assert blamed(verdict) == [0, 1, 2]


def test_loss_that_is_bad_everywhere_after_values_met_in_the_forward_pass_names_nobody() -> None:
    met = make.call(0, "all_reduce", make.frame("model.py", 9, "forward"), seq=3, step=12)
    ranks = [
        make.rank(
            number,
            make.stack("train.py", 40, "main"),
            progress=make.progress(met, steps=20, non_finite=(noted("loss"),), world=3),
        )
        for number in range(3)
    ]
    verdict = conclude(running(*ranks))
    assert (verdict.cause, verdict.certainty, verdict.culprits) == ("nan-loss", "possible", ())
    assert "all_reduce at forward (model.py:9)" in " ".join(verdict.because)


def test_every_fact_about_numbers_has_words() -> None:
    own = [fact for fact in FACTS.values() if fact.__module__ == facts.__name__]
    assert len(own) > 10
    assert [fact.__name__ for fact in own if not has_words(fact)] == []


def test_verdict_tells_what_was_noted_as_values() -> None:
    verdict = conclude(running(rank(0), rank(1, noted("input", names=("batch[0]",))), rank(2)))
    assert [fact["kind"] for fact in verdict.facts] == ["held-bad", "bad-tensors"]
    assert verdict.facts[0] == {
        "kind": "held-bad",
        "rank": 1,
        "what": "input",
        "value": "nan",
        "step": 12,
        "detail": "",
    }


def test_program_that_ends_itself_because_of_it_is_no_crash() -> None:
    ended = rank(1, noted("gradient"), exit=make.ended(76))
    verdict = conclude(running(rank(0), ended, rank(2)))
    assert (verdict.outcome, verdict.cause) == ("nan", "nan-gradient")
    other = conclude(running(rank(0), rank(1, noted("gradient"), exit=make.ended(3)), rank(2)))
    assert (other.outcome, other.cause) == ("crash", "exit-code")
    assert "nan-gradient" in [each.cause for each in other.alternatives]


def loaded(index: int, file: str, line: int) -> Stage:
    return Stage(
        index=index,
        label="loading a checkpoint",
        words="Checkpoint loaded",
        kind="load",
        note="best.pt",
        entered_at=1.0,
        left_at=2.0,
        number=index + 1,
        failed=False,
        announced=False,
        always=False,
        thread=1,
        memory_before=0,
        memory_after=0,
        gpu_before=0,
        gpu_after=0,
        site=(make.frame(file, line, "restore"),),
    )


def replica(
    number: int,
    values: list[float],
    *,
    group: str = "0",
    members: tuple[int, ...] = (0, 1, 2),
    loads: tuple[tuple[str, int], ...] = (),
) -> RankEvidence:
    sums = tuple(Checksum(16 * (at + 1), value, group, "head.weight") for at, value in enumerate(values))
    stages = tuple(loaded(index, file, line) for index, (file, line) in enumerate(loads))
    progress = make.progress(steps=60, world=3, groups=(Group(group, "", members),), checksums=sums, stages=stages)
    return make.rank(number, make.stack("train.py", 40, "main"), progress=progress)


def test_replica_that_differs_from_the_majority_is_named() -> None:
    verdict = conclude(running(replica(0, [1, 2, 3]), replica(1, [1, 2.5, 3.5]), replica(2, [1, 2, 3])))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("corrupt", "parameters-diverged", "likely")
    assert blamed(verdict) == [1]
    assert "after 32 optimizer steps" in verdict.headline


def test_the_checkpoint_that_one_rank_alone_loaded_is_the_line() -> None:
    begin = (("train.py", 12),)
    seen = [
        replica(0, [1, 2.5, 3.5], loads=(*begin, ("train.py", 20), ("train.py", 20))),
        replica(1, [1, 2, 3], loads=begin),
        replica(2, [1, 2, 3], loads=begin),
    ]
    verdict = conclude(running(*seen))
    assert (blamed(verdict), verdict.culprits[0].where and verdict.culprits[0].where.line) == ([0], 20)
    assert "no other rank loaded a checkpoint at restore (train.py:20)" in verdict.headline
    assert "only rank 0 loaded a checkpoint 2 times at restore (train.py:20)" in verdict.because
    pair = (0, 1)
    two = [
        replica(0, [1, 2, 3], members=pair, loads=begin),
        replica(1, [1, 2.5, 3.5], members=pair, loads=(*begin, ("train.py", 20))),
    ]
    assert blamed(conclude(running(*two))) == [1]


def test_two_replicas_that_differ_name_nobody() -> None:
    pair = (0, 1)
    verdict = conclude(running(replica(0, [1, 2, 3], members=pair), replica(1, [1, 2.5, 3.5], members=pair)))
    assert (verdict.cause, verdict.culprits) == ("parameters-diverged", ())


@pytest.mark.parametrize(
    "other",
    [
        [1.0, 2.0, 3.0 * (1 + 1e-7)],  # the order of a sum
        [1.0, 2.0, 3.5],  # a single difference
        [1.0, float("nan"), float("nan")],  # told of as such
    ],
)
def test_replicas_that_are_as_good_as_equal_are_left_alone(other: list[float]) -> None:
    assert conclude(running(replica(0, [1, 2, 3]), replica(1, other), replica(2, [1, 2, 3]))).outcome == "ok"


def test_replicas_are_only_compared_when_the_whole_group_was_seen() -> None:
    seen = [replica(number, [1, 2 + number, 3 + number], members=(0, 1, 2, 3)) for number in range(3)]
    assert conclude(running(*seen)).outcome == "ok"
    apart = [replica(0, [1, 2, 3], group="1", members=(0,)), replica(1, [5, 6, 7], group="2", members=(1,))]
    assert conclude(running(*apart)).outcome == "ok"
