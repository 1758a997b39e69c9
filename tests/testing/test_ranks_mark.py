"""`@pytest.mark.ranks`: the plugin in a pytest of its own, with real ranks."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow
OPTIONS = ("-p", "rankscope.testing.plugin", "-p", "no:cacheprovider", "-p", "no:timeout", "-rA")


Run = Callable[..., pytest.RunResult]
IMPORTS = "import os\nimport pytest\nimport torch\nimport torch.distributed as dist\n"


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def _run(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(
            test_ranks="import os\nimport pytest\nimport torch\nimport torch.distributed as dist\n" + text
        )
        return pytester.runpytest_subprocess(*OPTIONS, *options, timeout=120)

    return _run


def test_body_runs_in_every_rank_with_fixtures_and_parameters(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import os, pytest
        def pytest_addoption(parser):
            parser.addoption("--size", type=int, default=1)
        @pytest.fixture(scope="session")
        def size(request):
            assert "RANK" in os.environ, "fixtures belong to the ranks"
            return request.config.getoption("--size")
        """
    )
    result = run(
        """
@pytest.mark.ranks(2, backend="gloo")
@pytest.mark.parametrize("factor", [1, 3])
def test_sum(size, factor, tmp_path):
    value = torch.full((size,), float(factor * (1 + dist.get_rank())))
    dist.all_reduce(value)
    assert value.tolist() == [3.0 * factor] * 4
    print("sum on", dist.get_rank())

def test_plain():
    assert "RANK" not in os.environ
""",
        "--size=4",
    )
    result.assert_outcomes(passed=3)


def test_failure_shows_the_rank_that_failed_and_its_assertion(run: Run) -> None:
    result = run(
        """
@pytest.mark.ranks(2, backend="gloo")
def test_odd():
    print("here is", dist.get_rank())
    assert dist.get_rank() == 0, "only zero"
    dist.barrier()
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*CRASH, proven*rank 1 raised AssertionError in test_odd (test_ranks.py:9)*",
            "*--- rank 1 ---*",
            "*only zero*",
        ]
    )
    result.stdout.fnmatch_lines(["*Captured stdout of rank 1*", "here is 1"])
    assert "--- rank 0 ---" not in result.stdout.str()


def test_hang_is_explained_in_seconds(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        """
@pytest.mark.ranks(2, backend="gloo")
def test_even():
    dist.all_reduce(torch.ones(2))

@pytest.mark.ranks(2, backend="gloo")
def test_uneven():
    for step in range(3 if dist.get_rank() else 4):
        dist.all_reduce(torch.ones(2))
    if dist.get_rank():
        dist.barrier()
""",
        "--junitxml=times.xml",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*HANG, proven*", "*test_ranks.py*"])
    took = times(pytester)
    start_s = 4.0  # of ranks, where nothing else runs; a busy machine takes longer for both tests
    assert took["test_uneven"] < 10.0 + max(0.0, took["test_even"] - start_s)


def times(pytester: pytest.Pytester) -> dict[str, float]:
    """Test → seconds, as pytest itself tells them."""
    cases = ElementTree.parse(pytester.path / "times.xml").getroot().iter("testcase")
    return {case.attrib["name"]: float(case.attrib["time"]) for case in cases}


def test_skip_and_xfail_are_those_of_the_ranks(run: Run) -> None:
    result = run(
        """
@pytest.mark.ranks(2)
def test_not_here():
    pytest.skip("no fabric here")

@pytest.mark.ranks(1)
@pytest.mark.xfail(reason="not yet")
def test_not_yet():
    assert False
"""
    )
    result.assert_outcomes(skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*no fabric here*"])


def test_ranks_that_disagree_fail_the_test(run: Run) -> None:
    result = run(
        """
@pytest.mark.ranks(2)
def test_half():
    if os.environ["RANK"] == "1":
        pytest.skip("not on this one")
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the ranks disagree about this test: rank 0 passed, rank 1 skipped*"])


def test_time_limit_of_the_mark_shows_where_the_ranks_stand(run: Run) -> None:
    result = run(
        """
@pytest.mark.ranks(1, timeout=20)
def test_busy():
    while True:
        sum(range(1000))
        __import__("time").sleep(0.001)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*not over after 20 s*"])


def test_a_test_without_a_group_is_told_how_to_get_one(run: Run) -> None:
    result = run("@pytest.mark.ranks(1)\ndef test_alone():\n    dist.barrier()\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*backend='gloo'*"])


def test_mistakes_in_the_mark_are_told(run: Run) -> None:
    result = run("@pytest.mark.ranks(0)\ndef test_none():\n    pass\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*@pytest.mark.ranks(0): give 1 rank or more*"])


def test_modules_around_a_test_in_ranks_are_torn_down_in_order(run: Run, pytester: pytest.Pytester) -> None:
    fixture = """
import pytest
@pytest.fixture(scope="module", autouse=True)
def around():
    print("up")
    yield
    print("down")
"""
    pytester.makepyfile(test_a=fixture + "def test_a(): pass", test_z=fixture + "def test_z(): pass")
    result = run("@pytest.mark.ranks(1)\ndef test_middle():\n    assert os.environ['WORLD_SIZE'] == '1'\n")
    result.assert_outcomes(passed=3)


def test_works_under_xdist(run: Run) -> None:
    pytest.importorskip("xdist")
    result = run("@pytest.mark.ranks(2)\ndef test_spread():\n    assert 'RANK' in os.environ\n", "-n", "2")
    result.assert_outcomes(passed=1)


def test_debugger_opens_for_the_first_rank_that_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the terminal of the user's pytest, here a made one."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    body = (
        "@pytest.mark.ranks(2)\ndef test_value():\n    answer = 41 + int(os.environ['RANK'])\n    assert answer == 41\n"
    )
    path = pytester.makepyfile(test_ranks=IMPORTS + body)
    ours, theirs = pty.openpty()
    command = (sys.executable, "-m", "pytest", *OPTIONS, "--pdb", str(path))
    with pytester.popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        os.close(theirs)
        shown = read_until(ours, b"(Pdb)")
        os.write(ours, b"p 'the answer is', answer\n")
        shown += read_until(ours, b"the answer is', 42")
        os.write(ours, b"q\n")
        assert process.wait(60) == 1
    os.close(ours)
    assert b">>> rank 1: AssertionError" in shown


def read_until(descriptor: int, text: bytes, timeout_s: float = 60.0) -> bytes:
    shown = b""
    deadline = time.monotonic() + timeout_s
    while text not in shown and time.monotonic() < deadline:
        if select.select([descriptor], [], [], 1.0)[0]:
            shown += os.read(descriptor, 4096)
    assert text in shown, shown.decode(errors="replace")
    return shown
