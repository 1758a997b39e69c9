"""The pytest plugin. A test marked with `ranks` runs in a job, its own or one that it shares with its neighbours, with
a pytest in each rank; what the ranks report, and the verdict on the job, become the report of the test."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from itertools import takewhile

import pytest

from rankscope.testing import merged
from rankscope.testing.job import RankJob
from rankscope.testing.mark import Wanted, read_mark
from rankscope.testing.rank import SPEC_VARIABLE

_JOB = pytest.StashKey[RankJob]()
_NO_GROUP = "Default process group has not been initialized"
_HINT = (
    "a process group is ready before the body runs with @pytest.mark.ranks(2, backend='gloo'), or 'nccl'; "
    "without it the test makes its own"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "ranks(number, backend=None, timeout=300, stall=5, reuse=False): run the test in that many ranks of a "
        "torch.distributed job; with backend ('gloo', 'nccl') in a process group that is ready. A rank that fails, "
        "hangs or leaves the others waiting fails the test, with the cause and the line. With reuse=True, tests that "
        "follow one another and ask for the same share their ranks.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Nothing of the test is set up here: fixtures belong to the ranks."""
    mark = item.get_closest_marker("ranks")
    if mark is None or SPEC_VARIABLE in os.environ:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item, mark):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    # What earlier tests of this module have set up must be gone before another module's tests begin.
    item.session._setupstate.teardown_exact(nextitem)
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    _close(session.config)


def _reports(item: pytest.Item, mark: pytest.Mark) -> list[pytest.TestReport]:
    began = time.monotonic()
    try:
        wanted = read_mark(mark)
        result = _job_for(item, wanted).result(item)
    except ValueError as error:
        result = merged.Result("failed", str(error))
    else:
        if wanted.backend is None and result.outcome == "failed" and _NO_GROUP in result.text:
            result = replace(result, text=f"{result.text}\n\n{_HINT}")
        if not wanted.reuse:
            _close(item.config)
    return merged.reports(item, result, time.monotonic() - began)


def _job_for(item: pytest.Item, wanted: Wanted) -> RankJob:
    """That of the test before, where the two share their ranks; otherwise a new one."""
    running = item.config.stash.get(_JOB, None)
    if running is not None and running.answers(item):
        return running
    _close(item.config)
    job = item.config.stash[_JOB] = RankJob(_sharing(item, wanted), wanted)
    return job


def _sharing(item: pytest.Item, wanted: Wanted) -> list[pytest.Item]:
    """It, and the tests right after it that ask for the same. Under xdist nobody knows which those are."""
    config = item.config
    if not wanted.reuse or hasattr(config, "workerinput") or config.getoption("usepdb", False):
        return [item]
    items = item.session.items
    return list(takewhile(lambda each: _wanted(each) == wanted, items[items.index(item) :]))


def _wanted(item: pytest.Item) -> Wanted | None:
    mark = item.get_closest_marker("ranks")
    try:
        return read_mark(mark) if mark is not None else None
    except ValueError:
        return None  # told when its turn comes


def _close(config: pytest.Config) -> None:
    job = config.stash.get(_JOB, None)
    if job is not None:
        del config.stash[_JOB]
        job.close()
