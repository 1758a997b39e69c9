"""What runs in each rank of a test: a pytest of its own, for this one test, which leaves its reports in a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SPEC_VARIABLE = "RANKSCOPE_TEST_SPEC"


class _Reporter:
    """Keeps the reports and the exception, makes the process group, takes over the options of the user's pytest."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self.reports: list[dict[str, Any]] = []
        self.error: BaseException | None = None

    def pytest_configure(self, config: Any) -> None:
        for name, value in self._spec["options"].items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)

    def pytest_runtest_logreport(self, report: Any) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        self.reports.append(
            {
                "when": report.when,
                "outcome": report.outcome,
                "text": reason,
                "wasxfail": getattr(report, "wasxfail", None),
                "duration": report.duration,
            }
        )

    def pytest_exception_interact(self, call: Any) -> None:
        self.error = call.excinfo.value
        _debug(self._spec, self.error)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        backend = self._spec["backend"]
        if backend is None:
            yield
            return
        import torch.distributed as dist

        dist.init_process_group(backend)
        yield
        if dist.is_initialized():
            dist.destroy_process_group()


def _debug(spec: dict[str, Any], error: BaseException) -> None:
    """`--pdb`: the first rank that fails gets the terminal of the user's pytest."""
    if not spec["terminal"]:
        return
    try:
        os.close(os.open(Path(spec["results"]) / "debugged", os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return  # another rank was first
    import pdb

    with open(spec["terminal"], encoding="utf-8") as given, open(spec["terminal"], "w", encoding="utf-8") as shown:
        shown.write(f"\n>>> rank {os.environ['RANK']}: {type(error).__name__}: {error}\n")
        debugger = pdb.Pdb(stdin=given, stdout=shown)
        debugger.use_rawinput = False
        debugger.reset()
        debugger.interaction(None, error.__traceback__)


def main(path: str) -> int:
    """Runs the test; what ended it is raised once more, so that the probe sees it as what ends the rank."""
    spec = json.loads(Path(path).read_text(encoding="utf-8"))
    os.environ[SPEC_VARIABLE] = path
    os.chdir(spec["folder"])
    sys.path[:] = [*spec["path"], *(entry for entry in sys.path if entry not in spec["path"])]
    reporter = _Reporter(spec)
    code = pytest.main(spec["arguments"], plugins=[reporter])
    results = Path(spec["results"]) / f"{os.environ['RANK']}.json"
    results.with_suffix(".new").write_text(json.dumps(reporter.reports), encoding="utf-8")
    os.replace(results.with_suffix(".new"), results)
    if reporter.error is not None and int(code) == 1:
        raise reporter.error
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
