"""What installing the package would write beside it, so that the copy on a rented machine counts as installed.

Without it `python -m rankscope train` is not known there: verbs of packages are found through entry points.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from rankscope.errors import UsageError

_FILES = ("METADATA", "entry_points.txt")


def own_distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("rankscope")
    except metadata.PackageNotFoundError:
        raise UsageError("rankscope is not installed here, so its packages are not known: pip install .") from None


@contextmanager
def record_of_installation() -> Iterator[Path]:
    """A folder with the distribution's record, to be sent beside the package."""
    own = own_distribution()
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, f"rankscope-{own.version}.dist-info")
        record.mkdir()
        for name in _FILES:
            (record / name).write_text(own.read_text(name) or "", encoding="utf-8")
        yield Path(folder)
