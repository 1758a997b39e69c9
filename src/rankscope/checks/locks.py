"""Lock files that nobody will ever remove, and locks whose holder cannot let go."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankscope.checks.model import Findings, Flaw
from rankscope.evidence.procfs import command_line, pulse

SCAN_LIMIT_S = 5.0
_DEPTH = 7
_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "virtiofs")


def stale_locks(folders: Sequence[Path]) -> Findings:
    """Locks below these folders on which a rank would wait for ever."""
    found = list(_lock_files(folders))
    held = _flock_holders()
    opened = _opened_by({path for path in found if _exists_to_lock(path)})
    flaws = []
    for path in found:
        try:
            about = path.stat()
        except OSError:
            continue  # removed meanwhile: it was in use
        flaw = _stopped_holder(path, held.get((about.st_dev, about.st_ino)))
        if flaw is None and _exists_to_lock(path) and path not in opened and not _shared(path):
            flaw = _left_behind(path, "no process has it open", about.st_mtime)
        if flaw is None:
            flaw = _dead_owner(path, about.st_mtime)
        if flaw is not None:
            flaws.append(flaw)
    return Findings(flaws=tuple(flaws), facts=() if flaws else (f"lock files: {len(found)}, none stale",))


def _lock_files(folders: Sequence[Path]) -> Iterator[Path]:
    deadline = time.monotonic() + SCAN_LIMIT_S
    for folder in folders:
        for where, below, names in os.walk(folder):
            if time.monotonic() > deadline:
                return
            if len(Path(where).parts) - len(folder.parts) >= _DEPTH:
                below.clear()
            yield from (Path(where) / name for name in names if name == "lock" or name.endswith(".lock"))


def _exists_to_lock(path: Path) -> bool:
    """torch's extension builder takes its lock by making the file, and keeps it open until it removes it."""
    return path.name == "lock"


def _shared(path: Path) -> bool:
    """On a network file system the owner may live on another machine, where nobody can be asked from here."""
    best, kind = "", ""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, folder, type_, *_ = line.split()
        folder = folder.replace("\\040", " ")
        if (str(path) + "/").startswith(folder.rstrip("/") + "/") and len(folder) >= len(best):
            best, kind = folder, type_
    return kind.startswith(_NETWORK)


def _left_behind(path: Path, seen: str, made_at: float) -> Flaw:
    minutes = max(0.0, time.time() - made_at) / 60
    return Flaw(
        "lock-wait",
        f"{path} was left {minutes:.0f} min ago by a process that is gone ({seen}): every rank would wait for it",
        f"rm {path}",
    )


def _stopped_holder(path: Path, pid: int | None) -> Flaw | None:
    if pid is None:
        return None
    try:
        state, command = pulse(pid).state, command_line(pid)
    except (ProcessLookupError, OSError):
        return None  # it has just ended, and its lock with it
    if state not in "TtD":
        return None
    how = "stopped" if state in "Tt" else "stuck in the kernel"
    return Flaw(
        "lock-wait",
        f"process {pid} ({command}) holds {path} and is {how}: every rank would wait for it",
        f"continue it (kill -CONT {pid}) or end it (kill -9 {pid})",
    )


def _dead_owner(path: Path, made_at: float) -> Flaw | None:
    """Lock files that say who made them: a pid in the first line, the host in the second."""
    try:
        with path.open("rb") as file:
            lines = file.read(300).decode(errors="replace").split("\n")
    except OSError:
        return None
    pid, host = lines[0].strip(), lines[1].strip() if len(lines) > 1 else ""
    if not pid.isdigit() or host not in ("", socket.gethostname()) or os.path.exists(f"/proc/{pid}"):
        return None
    return _left_behind(path, f"it names process {pid}, which has ended", made_at)


def _flock_holders() -> dict[tuple[int, int], int]:
    """(device, inode) → the process that holds a lock of any kind on it."""
    found: dict[tuple[int, int], int] = {}
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if "->" in fields or len(fields) < 6 or not fields[4].lstrip("-").isdigit():
            continue
        major, minor, inode = fields[5].split(":")
        if int(fields[4]) > 0:
            found[os.makedev(int(major, 16), int(minor, 16)), int(inode)] = int(fields[4])
    return found


def _opened_by(paths: set[Path]) -> set[Path]:
    """Those that some process of this machine has open."""
    if not paths:
        return set()
    wanted = {os.path.realpath(path): path for path in paths}
    opened = set()
    for process in os.listdir("/proc"):
        if not process.isdigit():
            continue
        try:
            for descriptor in os.listdir(f"/proc/{process}/fd"):
                target = os.readlink(f"/proc/{process}/fd/{descriptor}")
                if target in wanted:
                    opened.add(wanted[target])
        except OSError:
            continue  # it ended, or belongs to somebody else
    return opened
