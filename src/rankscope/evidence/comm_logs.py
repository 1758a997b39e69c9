"""What NCCL wrote to its own files about a rank, where the job was started with --comm-debug."""

from __future__ import annotations

from pathlib import Path

from rankscope.mask import mask_lines

_TAIL_BYTES = 1 << 20
_MOST_LINES = 40
_TELLING = ("WARN", "ERROR", "error", "failed", "Abort")


def comm_lines(folder: Path | None, pid: int) -> tuple[str, ...]:
    """The newest warnings and errors in the rank's file; empty without one."""
    if folder is None or not folder.is_dir():
        return ()
    found: list[str] = []
    for path in sorted(folder.glob(f"nccl-*-{pid}.log")):
        try:
            with path.open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - _TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            continue  # it was removed meanwhile; the rank's own output is still there
        found += [line for line in text.splitlines() if any(word in line for word in _TELLING)]
    return mask_lines(found[-_MOST_LINES:])
