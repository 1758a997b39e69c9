"""The shortcuts of `native/quick.c`, where they were compiled for this Python."""

from __future__ import annotations

from typing import Any


def _compiled() -> Any:
    try:
        from rankscope.probe import _quick
    except ImportError:
        return None
    return _quick


quick = _compiled()
"""None where there are none: no compiler when the package was installed, or another Python than that one."""
