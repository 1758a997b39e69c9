"""The run's folder: everything about one run, in one place."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

from rankscope.errors import UsageError

MARK = "run.json"


def make_run_folder(wanted: Path | None, script: str, host: str | None = None) -> Path:
    """A new folder, writable, for this run alone. An earlier run there is moved aside, never overwritten.

    With `host`, of a job on several machines: the nodes may share the folder, so each has one of its own in it.
    """
    if wanted is not None:
        wanted = wanted / host if host is not None else wanted
        if (wanted / MARK).exists():
            _move_aside(wanted)
        return _create(wanted, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "-", Path(script).stem) or "job"
    stem = f"{time.strftime('%m%d-%H%M%S')}-{name}" + (f"-{host}" if host is not None else "")
    for number in range(1, 1000):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        if not path.exists():
            return _create(path, exist_ok=False)
    raise UsageError("runs/: too many runs started in this second; give --run-dir")


def _create(path: Path, *, exist_ok: bool) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
        probe = path / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"the run folder '{path}' cannot be written: {error.strerror}. Give another one with --run-dir"
        ) from error
    return path


def _move_aside(path: Path) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    try:
        path.rename(aside)
    except OSError as error:
        raise UsageError(
            f"'{path}' holds an earlier run and cannot be moved aside: {error.strerror}. Give another --run-dir"
        ) from error


def describe_run(folder: Path, command: list[str], versions: dict[str, str], options: dict[str, object]) -> None:
    """What was started, when and how; best effort, as the job matters more."""
    content = {
        "command": command,
        "started_at": time.time(),
        "folder": os.getcwd(),
        "versions": versions,
        "options": options,
    }
    try:
        (folder / MARK).write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the run folder '{folder}' cannot be written: {error.strerror}") from error
