"""`rankscope diagnose`: the verdict on what was saved earlier, by rankscope or by other tools, with today's rules."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from msgspec.structs import replace

from rankscope.errors import EvidenceError, UsageError
from rankscope.evidence.nan_dump import is_nan_dump, read_nan_dump
from rankscope.evidence.readers.gather import gather
from rankscope.given_paths import not_there
from rankscope.report.plain_text import plain
from rankscope.report.words.languages import add_lang, chosen_language, language
from rankscope.spelling import mended

if TYPE_CHECKING:
    from rankscope.diagnosis.verdict import Verdict
    from rankscope.evidence.model import Evidence

_DESCRIPTION = """\
Say what happened, from what is left of a job. Every PATH is told by its content and all of them are put together:

  the folder of a run of rankscope, its evidence folder or an evidence.json
  dumps of torch's flight recorder, pickle or JSON, NCCL or gloo, one rank a file (named after its rank)
  stacks of `py-spy dump`, as text or with --json
  torchrun's error.json
  logs of one rank or of many mixed in one file, with prefixes such as [rank1]: or R1:, or tags such as [train:R1]
  a folder of any of these
  alone: a file that `rankscope train` left of a step that was not finite (nan_debug_step_N.pkl)
  -   standard input
"""
_EPILOG = """\
examples:
  rankscope diagnose runs/1115-021233-train
  rankscope diagnose /tmp/nccl_trace_rank_*
  rankscope diagnose slurm-4711.out dumps/ stacks/
  kubectl logs job/train | rankscope diagnose -

exit code: 0 when the job was seen to end well or to go on, 1 when something is wrong, 3 when what was given does not
tell, 2 for a mistake in the command, 74 when the output cannot be written
"""


_MOST_REFUSED = 10
_WHOLE_MACHINE = frozenset({"/", "/proc", "/sys", "/dev"})
_QUIET_S = 2.0
"""So long a folder may be read before a line says so, and then every ten times as long."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{mended(message, self)} (see 'rankscope diagnose --help')")


def diagnose_command(arguments: list[str]) -> int:
    """The verb: 0 when the job was well, 1 when something is wrong, 3 when nobody can tell, 2 for a mistake."""
    parser = _Parser(
        prog="rankscope diagnose",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", nargs="+", metavar="PATH", help="a file or folder; - for standard input")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON on standard output")
    add_lang(parser)
    chosen = parser.parse_args(arguments)
    _, verdict = verdict_on(chosen.path, chosen_language(chosen.lang, os.environ))
    tell_refused(verdict)
    shown = [path for path in chosen.path if path != "-"]
    show(verdict, as_json=chosen.json, folder=shown[0] if len(shown) == 1 and len(chosen.path) == 1 else "")
    return exit_code(verdict)


def verdict_on(paths: list[str], lang: str = "en") -> tuple[Evidence, Verdict]:
    """What the paths hold, and the verdict on it. Raises UsageError for a path that cannot be meant."""
    for path in paths:
        if path != "-" and not os.path.exists(path):
            raise UsageError(not_there(path))
        if os.path.realpath(path) in _WHOLE_MACHINE:
            raise UsageError(f"'{path}' is a whole machine's: give the run's folder, or files that a job left")
    if paths.count("-") > 1:
        raise UsageError("standard input can be read once: give - only once")
    evidence = _evidence(paths, lang)
    return evidence, _verdict(evidence, lang)


def _verdict(evidence: Evidence, lang: str) -> Verdict:
    # Imported here and not above: while other processes read the dumps of a large job, there is time for it.
    from rankscope.diagnosis.diagnose import diagnose
    from rankscope.diagnosis.nothing_found import as_seen
    from rankscope.report.conclude import pronounce

    return pronounce(as_seen(diagnose(evidence), evidence), lang)


def _load() -> None:
    """What is needed after the reading."""
    from rankscope.diagnosis import diagnose, nothing_found  # noqa: F401
    from rankscope.report import conclude  # noqa: F401


def tell_refused(verdict: Verdict) -> None:
    """On standard error: the files that could not be used."""
    if not verdict.refused:
        return
    from rankscope.report.live import say

    label, refused = language(verdict.language).label, verdict.refused
    for text in refused[:_MOST_REFUSED]:
        say(label("not used: {what}", what=plain(text)))
    if len(refused) > _MOST_REFUSED:
        rest = len(refused) - _MOST_REFUSED
        say(label("and {count} more files were not used; --json names all of them", count=rest))


def exit_code(verdict: Verdict) -> int:
    """Of `diagnose` and `attach`; 2 is a mistake in the command, which has no verdict."""
    return {"ok": 0, "unknown": 3}.get(verdict.outcome, 1)


def _evidence(paths: list[str], lang: str) -> Evidence:
    only = Path(paths[0])
    if len(paths) > 1 or not is_nan_dump(only):
        return gather(paths, _standard_input(paths), _load, _Reading(lang))
    try:
        return read_nan_dump(only)
    except EvidenceError as error:
        return replace(gather([]), refused=(str(error),))


class _Reading:
    """Says that a folder is being read, where that takes long: it may be another one than was meant."""

    def __init__(self, lang: str) -> None:
        self._lang = lang
        self._files = 0
        self._next = time.monotonic() + _QUIET_S

    def __call__(self, path: str) -> None:
        self._files += 1
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 10 * _QUIET_S
        from rankscope.report.live import say

        told = "reading on: {count} files so far, now in {folder}; Ctrl-C stops, and the run's own folder is quicker"
        folder = plain(os.path.dirname(path))
        say(language(self._lang).label(told, count=f"{self._files:,}", folder=folder))


def _standard_input(paths: list[str]) -> BinaryIO | None:
    if "-" not in paths:
        return None
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("- reads standard input, and nothing is piped into it")
    return sys.stdin.buffer


def show(verdict: Verdict, *, as_json: bool, folder: str) -> None:
    """The verdict on standard output, for a program or for a person."""
    if as_json:
        from rankscope.diagnosis.codec import verdict_to_json

        sys.stdout.write(verdict_to_json(verdict).decode() + "\n")
        return
    from rankscope.report import terminal

    width = max(60, min(shutil.get_terminal_size((100, 24)).columns, 140))
    color = terminal.use_color(sys.stdout)
    print(terminal.render(verdict, color=color, width=width, folder=folder), flush=True)
