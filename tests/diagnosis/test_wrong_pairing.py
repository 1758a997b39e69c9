"""Calls that were paired and do not belong together are told while the job runs; calls that may differ never are."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from paired_programs import evidence_of, line_of

from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import Checksum, Evidence, NonFinite
from rankscope.report.conclude import conclude

OTHER_ROOT = """
def main():
    owners = {"lower": 0, "upper": 1}
    for number in range(40):
        names = ["upper", "lower"] if rank == 2 and number == 20 else ["lower", "upper"]
        for name in names:
            broadcast(Tensor(1024), root=owners[name])
        work(0.05)
main()
"""
OTHER_OPERATION = """
def main():
    for number in range(40):
        if rank == 1 and number == 20:
            reduce(Tensor(64), root=0)
        else:
            all_reduce(Tensor(64))
        all_gather(Tensor(8))
        work(0.05)
main()
"""
OTHER_REDUCTION = """
def norm(values, careful):
    if careful:
        all_reduce(values, op="MAX")
    else:
        all_reduce(values)

def main():
    for number in range(40):
        norm(Tensor(1), rank == 2 and number == 20)
        all_gather(Tensor(8))
        work(0.05)
main()
"""
TURNED_ROUND = """
def products(few):
    if few:
        return Tensor(2048, shape="32x64")
    return Tensor(2048, shape="64x32")

def main():
    for number in range(40):
        all_reduce(products(rank == 2 and number == 20))
        all_gather(Tensor(8))
        work(0.05)
main()
"""
SKIPPED = """
def total(values):
    all_reduce(values)

def main():
    for number in range(40):
        total(Tensor(128))
        active = not (rank == 1 and number == 20)
        if active:
            total(Tensor(128))
        work(0.05)
    if rank == 1:
        total(Tensor(128))
main()
"""
SKIPPED_IN_A_RUN = """
def gradients(values):
    all_reduce(values)

def weights(values):
    all_reduce(values)

def main():
    rounds = 0
    for number in range(60):
        gradients(Tensor(256))
        step()
        work(0.03)
        outliers = 19 if rank == 1 and number == 29 else 3
        if number % 10 == 9 and outliers <= 12:
            weights(Tensor(256))
            rounds += 1
    while rounds < 6:
        weights(Tensor(256))
        rounds += 1
main()
"""
EXTRA = """
made = []

def mean(values):
    if len(made) < 40:
        made.append(values)
        all_reduce(values)

def peak(values):
    made.append(values)
    all_reduce(values)

def main():
    for number in range(40):
        norm = 300 if rank == 1 and number == 20 else 100
        if norm > 200:
            peak(Tensor(128))
        mean(Tensor(128))
        work(0.05)
main()
"""
MADE_UP_FOR = """
def boxes(found):
    if not found:
        return False
    all_reduce(Tensor(1))
    return True

def main():
    for number in range(40):
        counted = boxes(rank != 1 or number < 20)
        all_reduce(Tensor(1))
        if not counted:
            all_reduce(Tensor(1))
        all_gather(Tensor(64))
        step()
        work(0.05)
main()
"""
SHORTER_PASS = """
def meet(values):
    all_reduce(values)

def evaluate(batches):
    for _ in range(batches):
        meet(Tensor(64))
        work(0.02)

def main():
    for number in range(1, 60):
        meet(Tensor(64))
        step()
        work(0.03)
        if number % 20 == 0:
            evaluate(4 if rank == 1 else 5)
    if rank == 1:
        evaluate(2)
main()
"""
SWAPPED = """
def main():
    gradient, square = Tensor(128), Tensor(128)
    for number in range(40):
        if rank == 1 and number == 20:
            all_reduce(square.clamp_(max=25))
            all_reduce(gradient.clamp_(-5, 5))
        else:
            all_reduce(gradient)
            all_reduce(square)
        work(0.05)
main()
"""
SWAPPED_FUNCTIONS = """
def share_first():
    all_reduce(Tensor(128))

def share_second():
    all_reduce(Tensor(128))

def main():
    for number in range(40):
        order = (share_second, share_first) if rank == 1 and number == 20 else (share_first, share_second)
        for share in order:
            share()
        work(0.05)
main()
"""
SHIFTED_THEN_OTHER = """
def main():
    for number in range(40):
        if rank == 0 and number == 20:
            all_reduce(Tensor(64))
        all_reduce(Tensor(64))
        all_gather(Tensor(64))
        work(0.05)
        step()
    if rank != 0:
        all_gather(Tensor(64))
main()
"""


def diagnosed(evidence: Evidence) -> Verdict:
    return conclude(evidence)


def blamed(verdict: Verdict) -> list[int | None]:
    return [culprit.rank for culprit in verdict.culprits]


def lines(verdict: Verdict) -> list[int | None]:
    return [culprit.where.line if culprit.where is not None else None for culprit in verdict.culprits]


@pytest.mark.parametrize("recorded", [False, True], ids=["by the pages", "by the recorder"])
@pytest.mark.parametrize(
    ("source", "cause", "certainty", "rank", "line"),
    [
        (OTHER_ROOT, "collective-mismatch", "proven", 2, "broadcast(Tensor(1024)"),
        (OTHER_OPERATION, "collective-mismatch", "proven", 1, "reduce(Tensor(64), root=0)"),
        (SHIFTED_THEN_OTHER, "collective-skipped", "proven", 0, "all_reduce(Tensor(64))"),
        (SKIPPED, "collective-skipped", "likely", 1, "if active:"),
        (SKIPPED_IN_A_RUN, "collective-skipped", "likely", 1, "if number % 10 == 9 and outliers <= 12:"),
        (EXTRA, "collective-skipped", "likely", 1, "def peak"),
        (MADE_UP_FOR, "collective-skipped", "likely", 1, "if not found:"),
        (MADE_UP_FOR.replace("    step()\n", "    work(0)\n"), "collective-skipped", "likely", 1, "if not found:"),
        (SHORTER_PASS, "uneven-data", "likely", 1, "all_reduce(values)"),
        (SWAPPED, "collective-mismatch", "likely", 1, "all_reduce(square.clamp_(max=25))"),
        (SWAPPED_FUNCTIONS, "collective-mismatch", "likely", 1, "def share_second"),
    ],
    ids=[
        "root",
        "operation",
        "shift, then another operation",
        "skipped",
        "in a run",
        "extra",
        "made up for",
        "made up for, no steps",
        "shorter pass",
        "swapped",
        "other order",
    ],
)
def test_wrong_pairing_is_told_with_rank_and_line(
    source: str, cause: str, certainty: str, rank: int, line: str, recorded: bool
) -> None:
    verdict = diagnosed(evidence_of(source, recorded=recorded, behind={0: 3, 1: 2, 2: 1}))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("corrupt", cause, certainty), verdict.headline
    assert blamed(verdict) == [rank]
    offset = {"def peak": 2, "def share_second": 1}.get(line, 0)
    assert lines(verdict) == [line_of(source, line) + offset]
    assert sorted(verdict.victims) == [each for each in range(3) if each != rank]
    assert any("its numbers are wrong since then" in reason for reason in verdict.because)
    assert verdict.detected_after_s is not None


STEADY = "work(0.05)\nmain()"
UNSTEADY = "work(0.05 + number % 3 * 0.02)\nmain()"


@pytest.mark.parametrize(
    ("rounds", "between", "outcome"),
    [(STEADY, 0.04, "corrupt"), (STEADY, 0.048, "ok"), (UNSTEADY, 0.02, "corrupt"), (UNSTEADY, 0.04, "ok")],
)
def test_a_call_that_comes_before_a_round_is_over_is_one_more(rounds: str, between: float, outcome: str) -> None:
    """The first kernel of its kind takes a while. How soon is too soon depends on how much the rounds vary."""
    slow = EXTRA.replace("peak(Tensor(128))", f"peak(Tensor(128)); work({between})").replace(STEADY, rounds)
    assert diagnosed(evidence_of(slow)).outcome == outcome


def test_it_is_found_after_the_job_has_ended() -> None:
    verdict = diagnosed(evidence_of(OTHER_ROOT, ended=True, trigger="end"))
    assert (verdict.outcome, verdict.cause, blamed(verdict)) == ("corrupt", "collective-mismatch", [2])


def test_two_ranks_that_differ_are_two_sides() -> None:
    verdict = diagnosed(evidence_of(OTHER_ROOT.replace("rank == 2", "rank == 1"), ranks=2))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("corrupt", "collective-mismatch", "proven")
    assert blamed(verdict) in ([], [1])
    assert blamed(verdict) or len(verdict.sides) == 2


@pytest.mark.parametrize("recorded", [False, True], ids=["by the pages", "by the recorder"])
def test_another_reduction_of_the_same_size_is_a_mismatch(recorded: bool) -> None:
    verdict = diagnosed(evidence_of(OTHER_REDUCTION, recorded=recorded))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("corrupt", "collective-mismatch", "proven")
    assert (blamed(verdict), lines(verdict)) == ([2], [line_of(OTHER_REDUCTION, 'op="MAX"')])
    assert "all_reduce (MAX) of 1 element" in verdict.headline
    assert "all_reduce (SUM) of 1 element" in verdict.headline


@pytest.mark.parametrize("recorded", [False, True], ids=["by the pages", "by the recorder"])
def test_a_matrix_the_other_way_round_is_a_mismatch(recorded: bool) -> None:
    verdict = diagnosed(evidence_of(TURNED_ROUND, recorded=recorded))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("corrupt", "collective-mismatch", "proven")
    assert (blamed(verdict), lines(verdict)) == ([2], [line_of(TURNED_ROUND, "all_reduce(products")])
    assert "all_reduce of 2048 elements (32 x 64)" in verdict.headline
    assert "all_reduce of 2048 elements (64 x 32)" in verdict.headline


@pytest.mark.parametrize("folded", ["", "128x16", "64x4x8", "64x32x"])
def test_the_same_elements_folded_in_another_way_are_no_mismatch(folded: str) -> None:
    source = TURNED_ROUND.replace('"32x64"', f'"{folded}"')
    assert diagnosed(evidence_of(source)).outcome == "ok"


def test_a_pairing_that_never_completed_is_no_corruption() -> None:
    """The job hangs there, and that is told by others."""
    source = OTHER_OPERATION.replace("range(40)", "range(21)").replace("all_gather(Tensor(8))", "pass")
    assert diagnosed(evidence_of(source, stuck=True)).outcome != "corrupt"
    assert diagnosed(evidence_of(source, stuck=True, recorded=True)).outcome != "corrupt"


@pytest.mark.parametrize("recorded", [False, True], ids=["by the pages", "by the recorder"])
def test_a_hang_at_the_end_is_told_with_the_first_wrong_pairing(recorded: bool) -> None:
    """One call short, a rank is at the last barrier while the others wait for their last sum."""
    source = SKIPPED.replace("if rank == 1:\n        total(Tensor(128))", "all_gather(Tensor(1))")
    behind = {0: 1, 2: 1}  # they have not come to the end
    seen = evidence_of(source, recorded=recorded, behind=behind, stuck=True, trigger="still")
    verdict = diagnosed(seen)
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("hang", "collective-skipped", "proven")
    assert (blamed(verdict), lines(verdict)) == ([1], [line_of(source, "if active:")])
    assert verdict.victims == (0, 2)


def test_a_late_nan_is_a_consequence() -> None:
    seen = evidence_of(OTHER_ROOT)
    bad = NonFinite("gradient", 30, seen.collected_at - 1, "nan", ("weight",), 1, local=True)
    ranks = tuple(
        replace(rank, progress=replace(rank.progress, non_finite=(bad,))) if rank.progress else rank
        for rank in seen.ranks
    )
    verdict = diagnosed(replace(seen, ranks=ranks))
    assert (verdict.outcome, verdict.cause, blamed(verdict)) == ("corrupt", "collective-mismatch", [2])


def test_replicas_that_differ_are_a_consequence() -> None:
    seen = evidence_of(SKIPPED)
    sums = [tuple(Checksum(step, 1.0 + (rank == 1), "0", "weight") for step in (30, 31)) for rank in range(3)]
    ranks = tuple(
        replace(rank, progress=replace(rank.progress, checksums=sums[rank.rank])) if rank.progress else rank
        for rank in seen.ranks
    )
    verdict = diagnosed(replace(seen, ranks=ranks))
    assert (verdict.outcome, verdict.cause, blamed(verdict)) == ("corrupt", "collective-skipped", [1])


TWO_LINES = """
def main():
    for number in range(40):
        if rank == 0:
            broadcast(Tensor(16), root=0)
        else:
            broadcast(Tensor(16), root=0)
        all_reduce(Tensor(4))
        work(0.05)
main()
"""
JOINED = """
def main():
    for number in range(40):
        if rank == 1 and number >= 20:
            all_reduce(Tensor(1))
            all_reduce(Tensor(64))
        else:
            all_reduce(Tensor(1))
            all_reduce(Tensor(64))
        work(0.05)
main()
"""
ANOTHER_WAY_ONCE = """
def main():
    for number in range(40):
        done = False
        if rank == 1 and number == 20:
            all_reduce(Tensor(128))
            done = True
        if not done:
            all_reduce(Tensor(128))
        work(0.05)
main()
"""
OWN_SPLITS = """
def main():
    for number in range(40):
        all_to_all_single(Tensor(10 * number + rank))
        all_gather_into_tensor(Tensor(96))
        work(0.05)
main()
"""
UNKNOWN_ROOT = """
def main():
    for number in range(40):
        broadcast(Tensor(16), root=0 if rank == 0 else -1)
        work(0.05)
main()
"""
INSTEAD = """
made = []

def usual(values):
    if not made:
        all_reduce(values)
    made.clear()

def robust(values):
    made.append(values)
    all_reduce(values)

def main():
    for number in range(40):
        if rank == 1 and number == 20:
            robust(Tensor(128))
        usual(Tensor(128))
        work(0.05)
main()
"""
ONE_MORE_FOR_ANOTHER = """
def main():
    for number in range(40):
        if not (rank == 1 and number >= 20):
            all_reduce(Tensor(1))
        for _ in range(2 if rank == 1 and number >= 20 else 1):
            all_reduce(Tensor(1))
        all_gather(Tensor(64))
        step()
        work(0.05)
main()
"""
MIXED_NAMES = """
def main():
    for number in range(40):
        if rank == 0:
            all_gather(Tensor(32))
        else:
            all_gather_into_tensor(Tensor(96))
        all_reduce(Tensor(1))
        work(0.05)
main()
"""


@pytest.mark.parametrize("recorded", [False, True], ids=["by the pages", "by the recorder"])
@pytest.mark.parametrize(
    "source",
    [
        TWO_LINES,
        JOINED,
        ANOTHER_WAY_ONCE,
        INSTEAD,
        OWN_SPLITS,
        UNKNOWN_ROOT,
        ONE_MORE_FOR_ANOTHER,
        MADE_UP_FOR.replace("all_reduce(Tensor(1))", "barrier(None)"),
        MADE_UP_FOR.replace("        step()\n", "").replace("number < 20", "number != 20"),
    ],
    ids=[
        "written twice",
        "joined ranks",
        "another way once",
        "in place of it",
        "own splits",
        "unknown root",
        "one more for another",
        "barriers",
        "once, and no steps",
    ],
)
@pytest.mark.parametrize("behind", [{}, {0: 7}, {1: 1, 2: 30}])
def test_what_may_differ_is_not_told(source: str, behind: dict[int, int], recorded: bool) -> None:
    verdict = diagnosed(evidence_of(source, recorded=recorded, behind=behind))
    assert verdict.outcome in ("ok", "slow"), verdict.headline


def test_a_group_that_was_made_again_is_not_compared_with_what_it_was_before() -> None:
    """The recorder then has newer calls under smaller numbers, and ranks are never at the same one."""
    source = """
def main():
    for number in range(20):
        all_gather(Tensor(8))
        work(0.05)
    for number in range(10):
        all_reduce(Tensor(64))
        work(0.05)
main()
"""
    seen = evidence_of(source, recorded=True, behind={1: 3})
    ranks = []
    for rank in seen.ranks:
        again = [replace(each, seq=each.seq - 20) for each in rank.collectives[20:]]
        ranks.append(replace(rank, collectives=(*rank.collectives[:20], *again)))
    verdict = diagnosed(replace(seen, ranks=tuple(ranks)))
    assert verdict.outcome in ("ok", "slow"), verdict.headline


def test_two_names_of_one_operation_are_not_told() -> None:
    assert diagnosed(evidence_of(MIXED_NAMES)).outcome in ("ok", "slow")


def test_groups_that_share_only_their_name_are_not_compared() -> None:
    source = """
def main():
    for number in range(40):
        if rank < 2:
            all_reduce(Tensor(8), group="3")
        else:
            all_gather(Tensor(1), group="3")
        work(0.05)
main()
"""
    verdict = diagnosed(evidence_of(source, 4, groups=(("3", ((0, 1), (2, 3))),)))
    assert verdict.outcome in ("ok", "slow"), verdict.headline
    verdict = diagnosed(evidence_of(source, 4, groups=(("3", ((0, 2), (1, 3))),)))
    assert (verdict.outcome, verdict.cause) == ("corrupt", "collective-mismatch")
