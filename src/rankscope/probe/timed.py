"""A function with a stopwatch around it."""

from __future__ import annotations

import _thread
import functools
import time
from collections.abc import Callable
from typing import Any

_inside: set[int] = set()
"""Threads inside of such a function."""


def timed(function: Any, before: Callable[[], Any], after: Callable[[float, Any], None]) -> Any:
    """`function`, telling `after` the seconds it took and what `before` gave; of nested ones only the outermost."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        thread = _thread.get_ident()
        if thread in _inside:
            return function(*args, **kwargs)
        _inside.add(thread)
        token, begin = before(), time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            _inside.discard(thread)
            after(time.perf_counter() - begin, token)

    return wrapper
