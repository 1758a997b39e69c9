"""The run's folder: everything about one run, in one place."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

from rankscope.errors import UsageError
from rankscope.held_folders import NotOurs, inside
from rankscope.mask import mask_arguments, mask_text
from rankscope.private_files import make_held_folder, write_private
from rankscope.report import live

MARK = "run.json"


def make_run_folder(wanted: Path | None, script: str, host: str | None = None) -> Path:
    """A new folder, writable, for this run alone. An earlier run there is moved aside, never overwritten.

    With `host`, of a job on several machines: the nodes may share the folder, so each has one of its own in it.
    """
    if wanted is not None:
        wanted = wanted / host if host is not None else wanted
        _refuse_current(wanted)
        if (wanted / MARK).exists() and not wanted.is_symlink() and wanted.stat().st_uid == os.geteuid():
            live.say(f"the earlier run in '{wanted}' is now in '{_move_aside(wanted)}'")
        return _create(wanted)
    name = re.sub(r"[^\w.-]+", "-", Path(script).stem) or "job"
    stem = f"{time.strftime('%m%d-%H%M%S')}-{name}" + (f"-{host}" if host is not None else "")
    for number in range(1, 1000):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        if not path.exists():
            return _create(path)
    raise UsageError("runs/: too many runs started in this second; give --run-dir")


def _refuse_current(wanted: Path) -> None:
    """A used folder is moved aside as a whole, so it holds nothing but the run."""
    if wanted.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise UsageError(
            f"--run-dir '{wanted}' is the current folder or one above it: give a folder for this run alone, "
            "as in --run-dir runs/first"
        )


def _create(path: Path) -> Path:
    try:
        make_held_folder(path)
        write_private(path / ".writable", b"")
        inside(path / ".writable").unlink()
    except NotOurs as error:
        raise UsageError(
            f"the run folder '{path}' {error.strerror}: nothing is written there. "
            "Give one with --run-dir that is yours, or that does not exist yet"
        ) from error
    except OSError as error:
        raise UsageError(
            f"the run folder '{path}' cannot be written: {error.strerror}. Give another one with --run-dir"
        ) from error
    return path


def _move_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    try:
        path.rename(aside)
    except OSError as error:
        raise UsageError(
            f"'{path}' holds an earlier run and cannot be moved aside: {error.strerror}. Give another --run-dir"
        ) from error
    return aside


def describe_run(folder: Path, command: list[str], versions: dict[str, str], options: dict[str, object]) -> None:
    """What was started, when and how; best effort, as the job matters more."""
    content = {
        "command": mask_arguments(command),
        "started_at": time.time(),
        "folder": mask_text(os.getcwd()),
        "versions": versions,
        "options": options,
    }
    try:
        write_private(folder / MARK, (json.dumps(content, indent=2, default=str) + "\n").encode())
    except OSError as error:
        raise UsageError(f"the run folder '{folder}' cannot be written: {error.strerror}") from error
