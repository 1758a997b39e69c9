"""What a zoo case is: a program, how to start it, and the verdict it must get."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from rankscope.diagnosis.verdict import Certainty, Outcome, ProcessKind

CASES = Path(__file__).resolve().parent / "cases"
NCCL_CASES = Path(__file__).resolve().parent / "nccl"
"""The same kind of programs for NCCL; they need a GPU, one is enough for all their ranks."""


STRANGERS = Path(__file__).resolve().parent / "strangers"
"""Programs that were written without a look at the rules, with expectations from before their first run."""


class Kill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signal from outside, sent once the text `after` was seen in the output."""

    rank: int
    signal: str
    after: str
    process: Literal["rank", "dataloader-worker"] = "rank"


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `expect.toml`."""

    description: str
    source: str
    """The public report that the case is drawn from, as cited in the list of failures."""
    nproc: int
    fault_marker: str
    """What the program logs just before things go wrong; the time to the verdict is counted from there."""
    outcome: Outcome
    exit_code: int | list[int]
    """Several where torch itself decides how a victim ends."""
    stopped: bool
    """rankscope itself ends the job because it cannot go on; such a run ends with code 75."""
    cause: str | None = None
    certainty: Certainty | None = None
    """Not judged when absent."""
    rank: int | list[int] | None = None
    """The culprits, as a set; absent where the culprit is no rank of the job, empty where two sides are to be told."""
    process: ProcessKind | None = None
    file: str = "train.py"
    line: str | list[str] = ""
    """Text of the line (or of each accepted line) that the culprits, or the sides, must stand on; empty: not judged."""
    args: list[str] = []
    """`{tmp}` is replaced by a scratch folder."""
    options: list[str] = []
    env: dict[str, str] = {}
    kill: Kill | None = None
    timeout_s: float = 90.0
    alone: bool = False
    """Its group's timeout is hardly longer than ranks may start apart on a busy machine: nothing runs beside it."""

    @property
    def healthy(self) -> bool:
        return self.outcome == "ok"

    @property
    def ranks(self) -> frozenset[int]:
        if self.rank is None:
            return frozenset()
        return frozenset(self.rank if isinstance(self.rank, list) else [self.rank])

    @property
    def snippets(self) -> tuple[str, ...]:
        lines = self.line if isinstance(self.line, list) else [self.line]
        return tuple(snippet for snippet in lines if snippet)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    folder: Path
    expect: Expectation


def case_names(root: Path = CASES) -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in root.glob("*/expect.toml")))


def load_case(name: str, root: Path = CASES, *, ranks: int | None = None) -> Case:
    """The case of that name; with `ranks`, to be run on so many instead. Raises FileNotFoundError, or
    msgspec.DecodeError that names the wrong field."""
    folder = root / name
    expect = msgspec.toml.decode((folder / "expect.toml").read_bytes(), type=Expectation)
    return Case(name, folder, expect if ranks is None else msgspec.structs.replace(expect, nproc=ranks))


def accepted_lines(case: Case) -> dict[str, tuple[int, ...]]:
    """Snippet → the numbers of the lines that contain it; a good snippet has exactly one."""
    if not case.expect.snippets:
        return {}
    lines = (case.folder / case.expect.file).read_text().splitlines()
    return {
        snippet: tuple(number for number, line in enumerate(lines, start=1) if snippet in line)
        for snippet in case.expect.snippets
    }
