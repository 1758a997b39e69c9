"""DDP's reductions where torch's recorder keeps nothing: a backward pass that stands still waits, and is not blamed."""

from __future__ import annotations

import factories as make

from rankscope.diagnosis.verdict import Verdict
from rankscope.evidence.model import RankEvidence, Syscall
from rankscope.report.conclude import conclude

STEP = make.frame("train.py", 61, "train")
REDUCED = make.call(0, "all_reduce", STEP, seq=1)
IN_BACKWARD = make.stack("train.py", 61, "train", [make.lib("torch/autograd/graph.py", "_engine_run_backward")])


def in_backward(number: int, cpu: float = 0.0) -> RankEvidence:
    inside = make.call(1, "backward", STEP, left=False)
    seen = {"processes": make.process("futex", cpu=cpu), "still_for_s": 0.0 if cpu else 40.0}
    return make.rank(number, IN_BACKWARD, progress=make.progress(REDUCED, inside, world=2), **seen)


def pushing(number: int) -> RankEvidence:
    thread = make.stack("train.py", 88, "push_metrics", [make.lib("socket.py", "SocketIO.readinto")])
    waits = make.process(Syscall("recvfrom", 5, "tcp 127.0.0.1:5000 -> 10.0.0.3:9000"))
    return make.rank(number, thread, progress=make.progress(REDUCED, world=2), processes=waits, still_for_s=40.0)


def test_the_rank_that_a_still_backward_pass_waits_for_is_named() -> None:
    verdict = conclude(make.evidence(in_backward(0), pushing(1)))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("hang", "blocked-call", "likely")
    assert [culprit.rank for culprit in verdict.culprits] == [1]
    assert verdict.victims == (0,)


def test_a_backward_pass_that_computes_waits_for_nobody() -> None:
    verdict = conclude(make.evidence(in_backward(0, cpu=0.5), pushing(1)))
    assert 0 not in verdict.victims


def test_two_still_backward_passes_blame_nobody() -> None:
    verdict = conclude(make.evidence(in_backward(0), in_backward(1)))
    assert verdict.culprits == ()
    assert verdict.certainty != "proven"


def parted(source: str) -> Verdict:
    """Rank 0 calls a broadcast that rank 1 does not: rank 1 stands in the reductions of DDP, and did nothing wrong."""
    alone, step = make.frame("train.py", 3, "train"), make.frame("train.py", 4, "train")
    made = make.call(1, "_broadcast_coalesced", step)
    calls = make.progress(made, make.call(2, "broadcast", alone, seq=1, left=False), world=2)
    inner = [make.lib("torch/distributed/distributed_c10d.py", "broadcast")]
    thread = make.stack("train.py", 3, "train", inner)
    broadcasting = make.rank(0, thread, progress=calls, processes=make.process("futex"), still_for_s=40.0)
    other = make.progress(made, make.call(2, "backward", step, left=False), world=2)
    backward = make.stack("train.py", 4, "train", [make.lib("torch/autograd/graph.py", "_engine_run_backward")])
    reducing = make.rank(1, backward, progress=other, processes=make.process("futex"), still_for_s=40.0)
    return conclude(make.evidence(broadcasting, reducing, source={"train.py": source}, stall_after_s=30.0))


CALLS = """\
def train(rank):
    {condition}
        dist.broadcast(weights, src=0)
    model(batch).sum().backward()
"""


def test_rank_that_a_condition_on_the_rank_let_into_another_call_is_named() -> None:
    verdict = parted(CALLS.format(condition="if dist.get_rank() == 0:"))
    assert (verdict.outcome, verdict.cause, verdict.certainty) == ("hang", "collective-skipped", "likely")
    (culprit,) = verdict.culprits
    assert (culprit.rank, culprit.where.line if culprit.where else None) == (0, 3)
    assert verdict.victims == (1,)


def test_without_such_a_condition_both_places_are_shown_and_nobody_is_blamed() -> None:
    verdict = parted(CALLS.format(condition="if ready():"))
    assert (verdict.outcome, verdict.certainty, verdict.culprits) == ("hang", "likely", ())
    assert "rank 0 waits in broadcast at train (train.py:3)" in verdict.headline
    assert "rank 1 waits in all_reduce at train (train.py:4)" in verdict.headline
