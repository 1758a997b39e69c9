"""verdict.json of a run, as far as the disk lets us."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rankscope.diagnosis.codec import verdict_to_json
from rankscope.diagnosis.verdict import Verdict
from rankscope.private_files import Reserve, write_private
from rankscope.report import live
from rankscope.report.words.languages import language

_NOT_PRINTED = "the verdict could not be printed as JSON ({why}): it is in {path}"


def print_verdict(verdict: Verdict, folder: Path) -> None:
    """As JSON on standard output. How the job ended decides the exit code, so a full disk there is told and no more."""
    try:
        sys.stdout.write(verdict_to_json(verdict).decode() + "\n")
        sys.stdout.flush()
    except OSError as error:
        path = folder / "verdict.json"
        live.say(language(verdict.language).label(_NOT_PRINTED, why=error.strerror, path=path))


class VerdictFile:
    """Room for it is kept free from the start. Where there is none all the same it lies on another disk, and `note` is
    told so."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self._path = folder / "verdict.json"
        self._reserve = Reserve(folder)
        self._note = note
        self._elsewhere: Path | None = None

    def write(self, data: bytes) -> None:
        try:
            self._write(data)
        except OSError as error:
            self.release()
            try:
                self._write(data)
            except OSError:
                self._note(f"{self._path}: {error.strerror}{self._kept_elsewhere(data)}")

    def release(self) -> None:
        """The room is not needed any more."""
        self._reserve.release()

    def _write(self, data: bytes) -> None:
        write_private(self._path, data)
        if self._elsewhere is not None:
            self._elsewhere.unlink(missing_ok=True)  # there is room again where it belongs
            self._elsewhere = None

    def _kept_elsewhere(self, data: bytes) -> str:
        other = Path(tempfile.gettempdir()) / f"rankscope-{os.getuid()}-verdict-{os.getpid()}.json"
        try:
            write_private(other, data)
        except OSError:
            return ""
        self._elsewhere = other
        return f"; the verdict is in {other}"
