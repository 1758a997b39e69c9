"""The pytest plugin. A test marked with `ranks` runs in a job of its own, one pytest a rank; what the ranks report, and
the verdict on the job, become the report of the test."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from rankscope.testing import job, merged
from rankscope.testing.mark import read_mark
from rankscope.testing.rank import SPEC_VARIABLE

_NO_GROUP = "Default process group has not been initialized"
_HINT = (
    "a process group is ready before the body runs with @pytest.mark.ranks(2, backend='gloo'), or 'nccl'; "
    "without it the test makes its own"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "ranks(number, backend=None, timeout=300, stall=5): run the test in that many ranks of a torch.distributed "
        "job; with backend ('gloo', 'nccl') in a process group that is ready. A rank that fails, hangs or leaves the "
        "others waiting fails the test, with the cause and the line.",
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


def _reports(item: pytest.Item, mark: pytest.Mark) -> list[pytest.TestReport]:
    began = time.monotonic()
    try:
        wanted = read_mark(mark)
        result = job.run(item, wanted)
    except ValueError as error:
        result = merged.Result("failed", str(error))
    else:
        if wanted.backend is None and result.outcome == "failed" and _NO_GROUP in result.text:
            result = replace(result, text=f"{result.text}\n\n{_HINT}")
    return merged.reports(item, result, time.monotonic() - began)
