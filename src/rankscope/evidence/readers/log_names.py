"""Whose file a log is, by its place: only where launchers and people use names for ranks."""

from __future__ import annotations

import os
import re

_WORD = re.compile(
    r"(?i)(?:^|[^a-z])(?:local_?rank|global_?rank|rank|worker|proc|process|task|gpu)[^0-9a-z]{0,2}(\d{1,6})(?!\d)"
)
_STREAM = re.compile(r"(?i)^(?:std)?(?:out|err|output|error|log)(?:put)?[._-]?(\d{1,5})?(?:\.(?:log|txt|json))?$")


def rank_of_log(path: str) -> int | None:
    """`rank_3.log`, torchrun's `attempt_0/3/stderr.log`, `stderr.3`; None where the name tells no rank."""
    folder, name = os.path.split(path)
    if match := _WORD.search(name):
        return int(match[1])
    stream = _STREAM.match(name)
    parent = os.path.basename(folder)
    if stream is not None and stream[1]:
        return int(stream[1])
    if stream is not None and parent.isdigit() and len(parent) <= 6:
        return int(parent)
    if stream is not None and (match := _WORD.search(parent)):
        return int(match[1])
    return None
