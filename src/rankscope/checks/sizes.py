"""Bytes as people say them."""

from __future__ import annotations


def size_text(count: int) -> str:
    """`1.5 GiB`, `16 MiB`, `300 bytes`."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}".replace(".0 ", " ")
    return f"{count} bytes"
