"""`@pytest.mark.ranks(..., reuse=True)`: one job for several tests, and each test's result its own."""

from __future__ import annotations

import re

import pytest
from test_ranks_mark import Run, run

__all__ = ["run"]
pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

MARK = 'pytestmark = pytest.mark.ranks(2, backend="gloo", reuse=True)\n'
PID = """
def same_as_before(folder):
    path = folder / f"pid-{dist.get_rank()}"
    before = path.read_text() if path.exists() else None
    path.write_text(str(os.getpid()))
    return before == str(os.getpid())
"""


def test_tests_in_a_row_share_ranks_fixtures_and_keep_their_own_output(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        import torch.distributed as dist
        @pytest.fixture(scope="session")
        def model():
            assert dist.is_initialized(), "fixtures may use the group"
            return []
        """
    )
    result = run(
        MARK
        + """
@pytest.mark.parametrize("number", [0, 1])
def test_counted(model, number):
    print("said in", number, "by", dist.get_rank())
    model.append(os.getpid())
    assert model == [os.getpid()] * (number + 1)

@pytest.mark.skipif(True, reason="not today")
def test_skipped():
    pass

def test_group_that_a_test_ends_is_made_anew():
    dist.destroy_process_group()

def test_last(model):
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == 2 and len(model) == 2
"""
    )
    result.assert_outcomes(passed=4, skipped=1)
    parts = re.split(r"_{5,} (test\S+) _{5,}", result.stdout.str())
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    for number in (0, 1):
        section = sections[f"test_counted[{number}]"]
        assert f"said in {number} by 1" in section
        assert f"said in {1 - number}" not in section


def test_ranks_that_a_test_has_ended_are_replaced_for_those_after_it(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        MARK
        + PID
        + f"FOLDER = __import__('pathlib').Path({str(pytester.path)!r})\n"
        + """
def test_first():
    assert not same_as_before(FOLDER)

def test_hangs():
    assert same_as_before(FOLDER)
    if dist.get_rank():
        dist.all_reduce(torch.ones(2))

def test_fails_on_one():
    assert not same_as_before(FOLDER)
    assert dist.get_rank() == 0, "only zero"

def test_after():
    assert not same_as_before(FOLDER)

def test_again():
    assert same_as_before(FOLDER)
"""
    )
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(["*HANG, proven*rank 1 called all_reduce*", "*culprit*rank 1 *test_hangs"])
    result.stdout.fnmatch_lines(["*CRASH, proven*rank 1 raised*", "*culprit*rank 1 *test_fails_on_one"])


def test_chosen_tests_share_them_and_xdist_works(run: Run) -> None:
    body = MARK + "".join(f"def test_{name}():\n    dist.barrier()\n" for name in ("one", "two", "three"))
    run(body, "-k", "one or three").assert_outcomes(passed=2, deselected=1)
    pytest.importorskip("xdist")
    run(body, "-n", "2").assert_outcomes(passed=3)


def test_ranks_end_when_pytest_stops_early(run: Run) -> None:
    result = run(
        MARK
        + """
def test_uneven_skip():
    if dist.get_rank():
        pytest.skip("not on this one")

def test_long():
    import time
    time.sleep(100)
""",
        "-x",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the ranks disagree about this test: rank 0 passed, rank 1 skipped*"])
    assert result.duration < 60


def test_reuse_needs_a_group(run: Run) -> None:
    result = run("@pytest.mark.ranks(2, reuse=True)\ndef test_none():\n    pass\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ranks that stay meet in a process group; add backend='gloo'*"])
