"""The user's source around a line: branches, ways past it, loops."""

from __future__ import annotations

import textwrap

import factories as make
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.diagnosis.code import CodeReader
from rankscope.evidence.model import Frame
from searching import searched

TEXT = textwrap.dedent(
    """\
    def evaluate(model, rank, batch):
        if rank != 0:
            return
        if batch is None:
            log("empty")
        dist.all_reduce(batch)
        if is_main_process():
            dist.barrier()
        else:
            dist.broadcast(batch, 0)
        for name in names:
            if name in skipped:
                continue
            while waiting:
                dist.all_gather(name)
        dist.barrier()
    """
)


def at(line: int, function: str = "evaluate") -> Frame:
    return make.frame("train.py", line, function)


@pytest.fixture
def code() -> CodeReader:
    return CodeReader(make.evidence(source={"train.py": TEXT}))


def test_an_early_return_leads_past_all_later_lines(code: CodeReader) -> None:
    for line in (6, 8, 15, 16):
        found = code.way_past([at(line)])
        assert found is not None
        assert (found[1].line, found[1].test, found[1].on_rank, found[1].side) == (2, "rank != 0", True, "return")
    assert code.way_past([at(3)]) is None


def test_an_if_that_goes_on_is_no_way_past(code: CodeReader) -> None:
    assert [branch.line for branch in code.around(at(6)).passes] == [2]


def test_a_continue_leads_past_the_rest_of_its_loop_only(code: CodeReader) -> None:
    assert [(b.line, b.side) for b in code.around(at(15)).passes] == [(12, "continue"), (2, "return")]
    assert [(b.line, b.side) for b in code.around(at(16)).passes] == [(2, "return")]


def test_the_two_branches_of_one_condition_are_opposite(code: CodeReader) -> None:
    found = code.opposite_branches((at(8),), (at(10),))
    assert found is not None
    assert (found.line, found.on_rank) == (7, True)
    assert code.opposite_branches((at(8),), (at(16),)) is None
    assert code.opposite_branches((at(8),), ()) is None


def test_a_guard_on_the_rank_counts_in_any_frame_and_another_only_in_the_innermost(code: CodeReader) -> None:
    assert code.guard([at(6), at(8)]) == code.guard([at(8)])
    inner = code.guard([at(13)])
    assert inner is not None
    assert (inner[1].test, inner[1].on_rank) == ("name in skipped", False)
    assert code.guard([at(6), at(13)]) is None


def test_loops_are_told_innermost_first(code: CodeReader) -> None:
    assert code.around(at(15)).loops == ((14, 15), (11, 15))
    assert code.left_loop((at(15),), (at(16),)) == (at(15), 14)
    assert code.left_loop((at(12),), (at(15),)) is None
    assert code.left_loop((at(16),), (at(15),)) is None


@pytest.mark.parametrize(
    ("test", "on_rank"),
    [
        ("rank == 0", True), ("self.local_rank < 1", True), ("dist.get_rank() % 2", True), ("is_main_process", True),
        ("trainer.is_global_zero", True), ("args.rank0", True), ("accelerator.is_main", True), ("ranking > 3", False),
        ("frank", False), ("batch.damaged", False), ("step % 10 == 0", False), ("masterpiece", False),
    ],
)  # fmt: skip
def test_which_tests_speak_of_the_rank(test: str, on_rank: bool) -> None:
    text = f"if {test}:\n    dist.barrier()\n"
    found = CodeReader(make.evidence(source={"train.py": text})).guard([at(2, "<module>")])
    assert found is not None
    assert found[1].on_rank is on_rank


def test_a_missing_or_broken_source_tells_nothing() -> None:
    for source in (None, {"train.py": "def broken(:\n"}, {"other.py": TEXT}):
        code = CodeReader(make.evidence(source=source))
        assert code.guard([at(8)]) is None
        assert code.way_past([at(16)]) is None
        assert code.around(None).loops == ()


@searched(100)
@given(st.text(max_size=200), st.integers(-1, 20))
def test_any_text_and_line_can_be_read(text: str, line: int) -> None:
    code = CodeReader(make.evidence(source={"train.py": text}))
    code.guard([at(line)])
    code.way_past([at(line)])
    code.left_loop((at(line),), (at(1),))


@pytest.mark.parametrize(
    "assigned",
    [
        "r = dist.get_rank()",
        "r, w = dist.get_rank(), dist.get_world_size()",
        "r = int(os.environ['RANK'])",
        "r: int = int(os.environ.get('LOCAL_RANK', 0))",
        "r = accelerator.process_index",
        "r = dist.get_rank() == 0",
    ],
)
def test_a_variable_that_holds_the_rank_is_one_whatever_its_name(assigned: str) -> None:
    code = CodeReader(make.evidence(source={"train.py": f"{assigned}\nif r and step == 3:\n    dist.barrier()\n"}))
    found = code.guard([make.frame("train.py", 3, "<module>")])
    assert found is not None
    assert found[1].on_rank


@pytest.mark.parametrize("assigned", ["r = data[dist.get_rank()::4]", "r = loss.item()", "r = os.environ['STEPS']"])
def test_a_variable_that_only_depends_on_the_rank_is_none(assigned: str) -> None:
    code = CodeReader(make.evidence(source={"train.py": f"{assigned}\nif r and step == 3:\n    dist.barrier()\n"}))
    found = code.guard([make.frame("train.py", 3, "<module>")])
    assert found is not None
    assert not found[1].on_rank
