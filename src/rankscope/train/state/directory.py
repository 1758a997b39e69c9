"""The directory that checkpoints live in: unfinished ones, publishing, keeping the last few, one job at a time.

A checkpoint is written under another name and renamed when it is complete, so that a folder called `step_...` never
was half written, whatever happens to the job or the machine. Needs no torch.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from rankscope.errors import UsageError
from rankscope.train.state import manifest as manifests
from rankscope.train.state.manifest import Found, Manifest

LATEST = "latest"
_PARTIAL = ".partial-"
_TRASH = ".trash-"
_ASIDE = "earlier-"
_LOCK = ".lock"


class CheckpointDirectory:
    """Used by rank 0 only; holds a lock from `open` to `close`, so that two jobs cannot tidy up each other's work."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def open(self) -> None:
        """Makes the directory, takes the lock, removes what a killed job left unfinished."""
        make_directory(self.path)
        try:
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _not_writable(self.path, error.strerror) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UsageError(
                f"another job that is still running saves its checkpoints in '{self.path}'; "
                "give this one a checkpoint.dir of its own"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):  # a file system without locks
                raise
        for path in self.path.iterdir():
            if path.name.startswith((_PARTIAL, _TRASH)):
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def partial(self, step: int) -> Path:
        """Where the checkpoint of this step is to be written."""
        return self.path / f"{_PARTIAL}{manifests.folder_name(step)}"

    def begin(self, step: int) -> None:
        """Makes the folder to write to, empty."""
        shutil.rmtree(self.partial(step), ignore_errors=True)
        self.partial(step).mkdir()

    def abandon(self, step: int) -> None:
        """Gives back the room that an unfinished checkpoint takes."""
        shutil.rmtree(self.partial(step), ignore_errors=True)

    def complaint(self, step: int) -> str | None:
        """What the disk says to one more megabyte, in the folder being written; None where it takes it. Torch tells a
        full disk as a position that it did not expect."""
        probe = self.partial(step) / f".probe-{os.getpid()}"
        try:
            with probe.open("wb") as file:
                file.write(bytes(1 << 20))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return os.strerror(error.errno) if error.errno is not None else str(error)
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
        return None

    def publish(self, manifest: Manifest, keep_last: int) -> Path:
        """Makes what was written the newest checkpoint, then removes the oldest beyond `keep_last`."""
        partial, final = self.partial(manifest.step), self.path / manifests.folder_name(manifest.step)
        manifests.write(partial, manifest)
        _sync_folder(partial)
        if final.exists():
            self._discard(final)
        partial.rename(final)
        _sync_folder(self.path)
        self._point_to(final)
        for old in manifests.complete(self.path)[0][:-keep_last]:
            self._discard(old.folder)
        return final

    def set_aside(self, checkpoints: Iterable[Path]) -> Path | None:
        """Moves checkpoints of another run into a folder of their own, where they are not taken for this run's."""
        folders = list(checkpoints)
        if not folders:
            return None
        stem = f"{_ASIDE}{time.strftime('%m%d-%H%M%S')}"
        aside = self.path / stem
        number = 1
        while aside.exists():
            number += 1
            aside = self.path / f"{stem}-{number}"
        aside.mkdir()
        for folder in folders:
            folder.rename(aside / folder.name)
        self._point_to_newest()
        _sync_folder(self.path)
        return aside

    def forget_earlier(self, keep: int) -> list[str]:
        """Removes what was put aside, but for the newest `keep`; returns the names of the folders that went."""
        earlier = sorted(self.path.glob(f"{_ASIDE}*"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        old = earlier[:-keep]
        for folder in old:
            self._discard(folder)
        return [folder.name for folder in old]

    def _discard(self, folder: Path) -> None:
        # Renamed first: a folder that is half removed must not pass for a checkpoint.
        trash = self.path / f"{_TRASH}{folder.name}-{time.time_ns()}"
        folder.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def _point_to_newest(self) -> None:
        """`latest` must not lead to a checkpoint that was moved away."""
        found, _ = manifests.complete(self.path)
        if found:
            self._point_to(found[-1].folder)
        else:
            with contextlib.suppress(FileNotFoundError):
                (self.path / LATEST).unlink()

    def _point_to(self, folder: Path) -> None:
        """For people; what to resume from is decided by manifests alone."""
        link = self.path / f"{_TRASH}{LATEST}"
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(folder.name)
        link.rename(self.path / LATEST)


def make_directory(path: Path) -> None:
    """Makes it where it is not there; raises UsageError where it cannot be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(path, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise _not_writable(path, reason)


def _not_writable(path: Path, reason: str | None) -> UsageError:
    return UsageError(f"checkpoint.dir '{path}' cannot be written: {reason}; give another directory")


def newest(directory: Path) -> tuple[Found | None, list[str]]:
    """The complete checkpoint of the highest step, and a sentence for each newer folder that is not complete."""
    found, wrong = manifests.complete(directory)
    last = found[-1] if found else None
    newer = [
        f"{path} is left alone: {reason}"
        for path, reason in wrong.items()
        if last is None or (manifests.step_of(path.name) or 0) > last.manifest.step
    ]
    return last, newer


def room_for(directory: Path, needed: int) -> None:
    """Refuses a directory whose disk could not hold one checkpoint."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise UsageError(
            f"checkpoint.dir '{directory}' has {_gigabytes(free)} free, and one checkpoint of this model takes "
            f"{_gigabytes(needed)}; make room or give another directory"
        )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
