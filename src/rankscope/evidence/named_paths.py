"""Files and folders that an exception names: whether they are there, and when they were last changed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from msgspec.structs import replace

from rankscope.evidence.model import NamedPath, RaisedException
from rankscope.evidence.time_limit import call_within

_QUOTED = re.compile(r"""['"`](/[^'"`\n]{1,4000})['"`]""")
_MOST_PATHS = 4
_PATIENCE_S = 1.0
"""A dead network file system answers never."""


def with_paths(exceptions: Iterable[RaisedException]) -> tuple[RaisedException, ...]:
    """The exceptions with what is known of the absolute paths that they quote."""
    return tuple(replace(each, paths=_look(each)) for each in exceptions)


def _look(exception: RaisedException) -> tuple[NamedPath, ...]:
    texts = (exception.message, *(earlier.message for earlier in exception.chain))
    named = list(dict.fromkeys(found for text in texts for found in _QUOTED.findall(text)))[:_MOST_PATHS]
    if not named:
        return ()
    try:
        return call_within(_PATIENCE_S, lambda: tuple(map(_about, named)))
    except TimeoutError:
        return ()


def _about(path: str) -> NamedPath:
    try:
        about = os.stat(path)
    except OSError:
        return NamedPath(path, exists=False)
    return NamedPath(path, exists=True, changed_at=max(about.st_mtime, about.st_ctime))
