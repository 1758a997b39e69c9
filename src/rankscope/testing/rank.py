"""What runs in each rank: a pytest of its own, for one test or some of them, which leaves its reports in files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SPEC_VARIABLE = "RANKSCOPE_TEST_SPEC"
TEST_BEGINS = "\x1erankscope: test {number}\x1e\n"
"""Between the output of one test and that of the next, of ranks that run several."""


class _Reporter:
    """Keeps the reports and the exception, makes the process group, takes over the options of the user's pytest."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._groups = 0
        self._reports: list[dict[str, Any]] = []
        self.error: BaseException | None = None

    def pytest_configure(self, config: Any) -> None:
        for name, value in self._spec["options"].items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._reports = []
        if self._spec["reuse"]:
            for stream in (sys.stdout, sys.stderr):
                print(TEST_BEGINS.format(number=self._spec["tests"].get(nodeid)), end="", file=stream, flush=True)

    def pytest_runtest_logreport(self, report: Any) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        self._reports.append(
            {
                "when": report.when,
                "outcome": report.outcome,
                "text": reason,
                "wasxfail": getattr(report, "wasxfail", None),
                "duration": report.duration,
            }
        )

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        number = self._spec["tests"].get(nodeid)
        results = Path(self._spec["results"]) / f"{os.environ['RANK']}-{number}.json"
        results.with_suffix(".new").write_text(json.dumps(self._reports), encoding="utf-8")
        os.replace(results.with_suffix(".new"), results)

    def pytest_exception_interact(self, call: Any) -> None:
        self.error = call.excinfo.value
        _debug(self._spec, self.error)

    def pytest_runtest_setup(self) -> None:
        """Asked after the marks that skip a test, and before its fixtures are made: they may use the group."""
        if self._spec["backend"] is None:
            return
        import torch.distributed as dist

        if dist.is_initialized():
            return  # of the test before
        if self._groups == 0:
            dist.init_process_group(self._spec["backend"])
        else:  # a test has ended it; the addresses of the old one are still in the store
            from torch.distributed.distributed_c10d import PrefixStore
            from torch.distributed.rendezvous import rendezvous

            store, rank, world = next(iter(rendezvous("env://")))
            store = PrefixStore(f"group {self._groups}", store)
            dist.init_process_group(self._spec["backend"], store=store, rank=rank, world_size=world)
        self._groups += 1

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        """Ranks that stay meet after each test: what one of them has left over shows in the test that left it."""
        yield
        if self._spec["backend"] is None or any(report["outcome"] == "failed" for report in self._reports):
            return
        import torch.distributed as dist

        if dist.is_initialized():
            dist.barrier() if self._spec["reuse"] else dist.destroy_process_group()

    def pytest_sessionfinish(self) -> None:
        """The group that tests have shared."""
        if self._groups and self.error is None:
            import torch.distributed as dist

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
    """Runs the tests; what ended one is raised once more, so that the probe sees it as what ends the rank."""
    spec = json.loads(Path(path).read_text(encoding="utf-8"))
    os.environ[SPEC_VARIABLE] = path
    os.chdir(spec["folder"])
    sys.path[:] = [*spec["path"], *(entry for entry in sys.path if entry not in spec["path"])]
    reporter = _Reporter(spec)
    code = pytest.main(spec["arguments"], plugins=[reporter])
    if reporter.error is not None and int(code) == 1:
        raise reporter.error
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
