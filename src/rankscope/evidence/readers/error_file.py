"""torchrun's error.json: the exception of one rank, written by `@record`."""

from __future__ import annotations

import re

from msgspec.structs import replace

from rankscope.errors import EvidenceError
from rankscope.evidence.model import RaisedException
from rankscope.evidence.tracebacks import find_tracebacks, masked
from rankscope.mask import mask_text

_TYPE = re.compile(r"^(?P<type>[A-Za-z_][\w.]*): ?(?P<message>.*)$", re.DOTALL)


def looks_like_error_file(document: dict[object, object]) -> bool:
    message = document.get("message")
    if isinstance(message, dict):
        return isinstance(message.get("message"), str)
    return isinstance(message, str) and "timestamp" in document


def read_error_file(document: dict[object, object]) -> tuple[RaisedException, int | None]:
    """The exception, and the exit code where it is told. Raises EvidenceError for another form."""
    message = document.get("message")
    text: object
    if isinstance(message, str):
        text, extra, code = message, document, document.get("errorCode")
    elif isinstance(message, dict):
        inner = message.get("extraInfo")
        text, extra, code = message.get("message"), inner if isinstance(inner, dict) else {}, message.get("errorCode")
    else:
        raise EvidenceError("the error file has no message")
    stack = extra.get("py_callstack")
    at = _time(extra.get("timestamp"))
    number = code if isinstance(code, int) and not isinstance(code, bool) else None
    found = find_tracebacks(stack.splitlines()) if isinstance(stack, str) else ()
    if found:
        return replace(masked(found[-1]), at=at, source="error-file", thread="MainThread"), number
    match = _TYPE.match(text) if isinstance(text, str) else None
    if match is None:
        raise EvidenceError("the error file names no exception")
    return RaisedException(match["type"], mask_text(match["message"]), at, (), "error-file"), number


def _time(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (str, int, float)) else None
    except ValueError:
        return None
