"""`check storage`: the run's folder, caches, /dev/shm, free space, locks and write speed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rankscope.checks.locks import stale_locks
from rankscope.checks.model import Findings, Flaw, joined
from rankscope.checks.sizes import size_text
from rankscope.evidence.time_limit import call_within

LEAST_SHM = 512 << 20
"""Loader workers hand batches over through it; 64 MB, the default of Docker, holds a few."""
LEAST_FREE = 1 << 30
LEAST_SPEED = 20 << 20
"""Bytes a second below which a checkpoint of a gigabyte takes nearly a minute."""
SAMPLE_BYTES = 32 << 20
ANSWER_LIMIT_S = 15.0


def check_storage(run_folder: Path, environment: Mapping[str, str], shm: Path = Path("/dev/shm")) -> Findings:
    """Every look has a time limit of its own: a dead network file system answers nothing at all."""
    caches = cache_folders(environment)
    looks = [folder_of_runs(run_folder), shared_memory(shm)]
    looks += [cache(name, path) for name, path in caches.items()]
    looks.append(stale_locks(list(caches.values())))
    return joined(looks)


def cache_folders(environment: Mapping[str, str]) -> dict[str, Path]:
    """The caches that a training program writes to, by the variable that moves them."""
    home = Path(environment.get("HOME") or os.path.expanduser("~"))
    general = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    folders = {
        "HF_HOME": environment.get("HF_HOME") or general / "huggingface",
        "TORCH_HOME": environment.get("TORCH_HOME") or general / "torch",
        "TORCH_EXTENSIONS_DIR": environment.get("TORCH_EXTENSIONS_DIR") or general / "torch_extensions",
        "TRITON_CACHE_DIR": environment.get("TRITON_CACHE_DIR") or home / ".triton" / "cache",
    }
    return {name: Path(path).expanduser() for name, path in folders.items()}


def folder_of_runs(folder: Path) -> Findings:
    try:
        return call_within(ANSWER_LIMIT_S, lambda: _run_folder(folder))
    except TimeoutError:
        return Findings(flaws=(_silent(f"the run folder {folder}", folder),))
    except OSError as error:
        return Findings(
            flaws=(
                Flaw(
                    "disk-full" if error.errno in _FULL else "exception",
                    f"the run folder {folder} cannot be written: {error.strerror}",
                    "start in a folder that this user may write, or give --run-dir",
                ),
            )
        )


def _run_folder(folder: Path) -> Findings:
    there = _nearest_existing(folder)
    with tempfile.TemporaryDirectory(prefix=".rankscope-check-", dir=there) as inside:
        free = _free_bytes(there)
        looks = [_room(there, free)]
        if free > 4 * SAMPLE_BYTES:
            looks.append(write_speed(Path(inside)))
        looks.append(_locks_work(Path(inside)))
    return joined(looks)


def _room(folder: Path, free: int) -> Findings:
    inodes = os.statvfs(folder)
    if free < LEAST_FREE:
        return Findings(
            flaws=(
                Flaw(
                    "disk-full",
                    f"only {size_text(free)} is free where runs and checkpoints go ({folder})",
                    "remove old checkpoints there, or give --run-dir on a larger disk",
                ),
            )
        )
    if inodes.f_files and inodes.f_favail < 1000:
        return Findings(
            flaws=(
                Flaw(
                    "disk-full",
                    f"only {inodes.f_favail} more files can be made in {folder}: its inodes are used up",
                    "remove small files there (df -i shows the use), or give --run-dir elsewhere",
                ),
            )
        )
    return Findings(facts=(f"run folder {folder}: writable, {size_text(free)} free",))


def write_speed(folder: Path) -> Findings:
    """Written and synced, as a checkpoint is that must survive."""
    block = os.urandom(1 << 20)
    path = folder / "speed"
    begun = time.monotonic()
    written = 0
    with path.open("wb", buffering=0) as file:
        # A slow disk is not kept busy for longer than it takes to know that it is slow.
        while written < SAMPLE_BYTES and time.monotonic() - begun < 3.0:
            file.write(block)
            written += len(block)
            if written in (1 << 20, 8 << 20, SAMPLE_BYTES):
                os.fsync(file.fileno())
    seconds = time.monotonic() - begun
    path.unlink()
    speed = written / max(seconds, 1e-6)
    if speed < LEAST_SPEED:
        return Findings(
            flaws=(
                Flaw(
                    "slow-rank",
                    f"the disk of {folder.parent} takes {speed / 1e6:.1f} MB/s ({written >> 20} MiB in "
                    f"{seconds:.1f} s): "
                    "saving 1 GB would keep all ranks waiting for "
                    f"{1e9 / speed:.0f} s",
                    "write checkpoints to a local disk and copy them from there, or save in the background",
                ),
            )
        )
    return Findings(facts=(f"write speed: {speed / 1e6:.0f} MB/s",))


_HOLD = "import fcntl,sys\nf=open(sys.argv[1],'w')\ntry: fcntl.flock(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\n"
_HOLD += "except BlockingIOError: sys.exit(3)\n"


def _locks_work(folder: Path) -> Findings:
    """A lock that two processes can hold at once protects nothing; some network file systems are like that."""
    path = folder / "lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return Findings(flaws=(_no_locks(folder, f"flock fails: {error.strerror}"),))
        second = subprocess.run([sys.executable, "-S", "-c", _HOLD, str(path)], timeout=10, check=False)
    if second.returncode == 0:
        return Findings(flaws=(_no_locks(folder, "two processes held the same lock at once"),))
    return Findings(facts=("file locks: work",))


def _no_locks(folder: Path, seen: str) -> Flaw:
    return Flaw(
        "path-race",
        f"file locks do not work in {folder.parent}: {seen}; ranks that download or compile there will race",
        "put caches and run folders on a local disk, or mount the file system with locks (NFS: -o local_lock=none)",
    )


def shared_memory(path: Path) -> Findings:
    try:
        about = os.statvfs(path)
    except OSError as error:
        return Findings(
            flaws=(
                Flaw(
                    "shm-exhausted",
                    f"{path} is not there: {error.strerror}",
                    "mount a tmpfs there (docker: --shm-size)",
                ),
            )
        )
    total, free = about.f_frsize * about.f_blocks, about.f_frsize * about.f_bavail
    if free < LEAST_SHM:
        return Findings(
            flaws=(
                Flaw(
                    "shm-exhausted",
                    f"{path} has {size_text(free)} free of {size_text(total)}: loader workers and NCCL run out of it",
                    "docker: --shm-size=8g or --ipc=host; Kubernetes: an emptyDir with medium: Memory; "
                    "else mount -o remount,size=8g /dev/shm",
                ),
            )
        )
    return Findings(facts=(f"{path}: {size_text(free)} free of {size_text(total)}",))


def cache(name: str, path: Path) -> Findings:
    try:
        return call_within(ANSWER_LIMIT_S, lambda: _cache(name, path))
    except TimeoutError:
        return Findings(flaws=(_silent(f"the cache {path} ({name})", path),))


def _cache(name: str, path: Path) -> Findings:
    try:
        there = _nearest_existing(path)
        with tempfile.NamedTemporaryFile(prefix=".rankscope-check-", dir=there):
            free = _free_bytes(there)
    except OSError as error:
        return Findings(
            flaws=(
                Flaw(
                    "disk-full" if error.errno in _FULL else "exception",
                    f"the cache {path} ({name}) cannot be written: {error.strerror}",
                    f"set {name} to a folder that this user may write",
                ),
            )
        )
    if free < LEAST_FREE // 4:
        return Findings(
            flaws=(
                Flaw(
                    "disk-full",
                    f"only {size_text(free)} is free where {name} lies ({path})",
                    f"remove old files there, or set {name} to a larger disk",
                ),
            )
        )
    return Findings(facts=(f"cache {path}: writable",))


def _silent(name: str, path: Path) -> Flaw:
    return Flaw(
        "blocked-call",
        f"{name} gave no answer within {ANSWER_LIMIT_S:g} s",
        f"look at the mount of {path}: a network file system whose server is gone blocks every rank",
    )


def _nearest_existing(path: Path) -> Path:
    """The folder in which the missing part would be made. Raises OSError where a file is in the way."""
    path = path.absolute()
    for candidate in (path, *path.parents):
        if candidate.is_dir():
            return candidate
        if os.path.lexists(candidate):
            raise NotADirectoryError(20, f"{candidate} is no folder")
    return Path("/")


def _free_bytes(path: Path) -> int:
    about = os.statvfs(path)
    return about.f_frsize * about.f_bavail


_FULL = frozenset({28, 122})
"""ENOSPC, EDQUOT."""
