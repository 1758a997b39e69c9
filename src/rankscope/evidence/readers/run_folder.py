"""The folder of a run of rankscope: what in it is read, also where its evidence is damaged or was never written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rankscope.errors import EvidenceError
from rankscope.evidence.model import Evidence
from rankscope.evidence.readers.refused import Refused
from rankscope.evidence.regular import LEADS_OUT, leads_out, read_regular
from rankscope.evidence.store import FILE_NAME, load_evidence

_MARKS = ("run.json", "verdict.json")
_OWN = frozenset({"run.json", "verdict.json", "environment.json", "ranks.json", "report.html", FILE_NAME})
"""Files of ours that are no evidence by themselves."""
_ATTEMPT = re.compile(r"attempt_(\d+)")
_LARGEST_VERDICT = 256 << 20
_MOST_FILES = 200_000
_LEVELS = 3
"""So far above an evidence.json lies the folder of its run, at most."""


class RunVerdict(msgspec.Struct, frozen=True):
    """What a run's own verdict.json says of how it ended."""

    outcome: str
    world_size: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    exit_codes: dict[int, int | None] = {}
    culprits: tuple[RunCulprit, ...] = ()

    @property
    def well(self) -> bool:
        codes = self.exit_codes.values()
        return self.outcome == "ok" and bool(codes) and not any(code != 0 for code in codes)


class RunCulprit(msgspec.Struct, frozen=True):
    rank: int | None = None


class Plan(msgspec.Struct):
    """What to read of a run."""

    evidence: list[tuple[str, Evidence]] = msgspec.field(default_factory=list)
    files: list[str] = msgspec.field(default_factory=list)
    """The oldest first: what a rank wrote last is its last sign of life."""
    refused: list[Refused] = msgspec.field(default_factory=list)
    notes: dict[str, str] = msgspec.field(default_factory=dict)
    verdict: RunVerdict | None = None


def plan_of(path: Path) -> Plan | None:
    """None where the path is neither the folder of a run, nor evidence of one."""
    file = _evidence_file(path)
    folder = path if path.is_dir() else path.parent
    run = folder if is_run_folder(folder) else _run_above(folder) if file is not None else None
    if file is None and (run is None or not path.is_dir()):
        return None
    plan = Plan()
    told = _verdict(path / "verdict.json", plan) if run == path else None
    if told is not None and told.well:
        plan.verdict = told
        if file is not None:
            plan.notes["evidence"] = f"{file} is of an earlier moment of a run that ended well: give it by itself"
        return plan
    if file is not None and path.is_dir() and leads_out(file, path):
        plan.refused.append(Refused(str(file), LEADS_OUT))
    elif file is not None:
        try:
            plan.evidence.append((str(file), load_evidence(file)))
            return plan
        except EvidenceError as error:
            plan.refused.append(Refused(str(file), str(error).removeprefix(f"{file} ")))
    plan.verdict = told  # its exit codes are more than nothing
    _read_instead(plan, file, run or folder)
    return plan


def _read_instead(plan: Plan, file: Path | None, folder: Path) -> None:
    """The logs and other files of the run, in place of evidence that is not there or cannot be read."""
    attempt = _ATTEMPT.search(str(file.parent.name)) if file is not None else None
    paths = sorted(_beside(folder, int(attempt[1]) if attempt else None, plan), key=_written)
    plan.files += [str(path) for path in paths]
    why = "cannot be read" if file is not None else "was not written"
    other = f"what lies beside it in {folder} was read instead: {len(paths)} file{'' if len(paths) == 1 else 's'}"
    plan.notes[FILE_NAME] = f"{why}; {other if paths else f'nothing else lies in {folder}'}"


def _evidence_file(path: Path) -> Path | None:
    """A run keeps one folder of evidence per attempt; the last attempt is what ended it."""
    if not path.is_dir():
        return path if path.name == FILE_NAME and path.is_file() else None
    attempts = sorted((path / "evidence").glob(f"attempt_*/{FILE_NAME}"), key=_written)
    if attempts:
        return attempts[-1]
    return next((file for file in (path / FILE_NAME, path / "evidence" / FILE_NAME) if file.exists()), None)


def is_run_folder(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in _MARKS)


def _run_above(folder: Path) -> Path | None:
    return next(
        (above for above in (folder.absolute(), *folder.absolute().parents)[:_LEVELS] if is_run_folder(above)), None
    )


def _beside(folder: Path, attempt: int | None, plan: Plan) -> Iterator[Path]:
    """All but our own notes and the logs of other attempts."""

    def elsewhere(path: Path) -> bool:
        if not path.is_symlink() or not leads_out(path, folder):
            return False
        plan.refused.append(Refused(str(path), LEADS_OUT))
        return True

    logs = sorted(int(match[1]) for each in folder.glob("logs/attempt_*") if (match := _ATTEMPT.fullmatch(each.name)))
    wanted = attempt if attempt in logs else (logs[-1] if logs else None)
    known: set[tuple[int, int]] = set()
    count = 0
    for root, folders, names in os.walk(folder, followlinks=True):
        here = Path(root)
        about = here.stat()
        count += len(names)
        if (about.st_dev, about.st_ino) in known or count > _MOST_FILES:
            folders.clear()  # a link leads back, or to something that is no run
            continue
        known.add((about.st_dev, about.st_ino))
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and not (here.name == "logs" and (match := _ATTEMPT.fullmatch(name)) and int(match[1]) != wanted)
            and not (here == folder and name == "evidence")
            and not elsewhere(here / name)
        )
        for name in names:
            if name not in _OWN and not name.startswith(".") and (here / name).is_file() and not elsewhere(here / name):
                yield here / name


def _verdict(path: Path, plan: Plan) -> RunVerdict | None:
    if leads_out(path, path.parent):
        plan.refused.append(Refused(str(path), LEADS_OUT))
        return None
    try:
        return msgspec.json.decode(read_regular(path, _LARGEST_VERDICT), type=RunVerdict)
    except FileNotFoundError:
        return None  # the run was killed, or goes on
    except (OSError, EvidenceError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        plan.refused.append(Refused(str(path), f"is damaged or cut off: {error}"))
        return None


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
