"""`rankscope diagnose`: the verdict on evidence that was saved earlier, with today's rules."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from rankscope.diagnosis.codec import verdict_to_json
from rankscope.diagnosis.diagnose import diagnose
from rankscope.errors import EvidenceError, UsageError
from rankscope.evidence.nan_dump import is_nan_dump, read_nan_dump
from rankscope.evidence.store import load_evidence
from rankscope.report import terminal


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see 'rankscope diagnose --help')")


def diagnose_command(arguments: list[str]) -> int:
    """The verb: 0 when the evidence shows nothing wrong, 1 when it does, 2 for a mistake."""
    parser = _Parser(
        prog="rankscope diagnose",
        description="Say again what happened, from the folder of a run, its evidence folder or an evidence.json, or "
        "from a file that `rankscope train` left of a step that was not finite.",
    )
    parser.add_argument("path", type=Path, help="runs/<time>-<name>, or a folder or file of evidence in it")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON on standard output")
    chosen = parser.parse_args(arguments)
    if not chosen.path.exists():
        raise UsageError(f"'{chosen.path}' does not exist")
    if is_nan_dump(chosen.path):
        verdict = diagnose(read_nan_dump(chosen.path))
    else:
        verdict = diagnose(load_evidence(_newest_evidence(chosen.path)))
    if chosen.json:
        sys.stdout.write(verdict_to_json(verdict).decode() + "\n")
    else:
        width = max(60, min(shutil.get_terminal_size((100, 24)).columns, 140))
        color = terminal.use_color(sys.stdout)
        print(terminal.render(verdict, color=color, width=width, folder=str(chosen.path)), flush=True)
    return 0 if verdict.outcome == "ok" else 1


def _newest_evidence(path: Path) -> Path:
    """A run keeps one folder of evidence per attempt; the last attempt is what ended it."""
    attempts = sorted((path / "evidence").glob("attempt_*/evidence.json"), key=lambda file: file.stat().st_mtime)
    if attempts:
        return attempts[-1]
    if (path / "run.json").exists():
        raise EvidenceError(f"'{path}' holds a run without evidence: nothing went wrong in it, or the disk was full")
    return path
