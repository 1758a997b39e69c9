"""Whether parameters that ranks must hold alike are still alike, by the checksums on their pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rankscope.diagnosis.rules.numbers.replicas import differ
from rankscope.errors import EvidenceError
from rankscope.evidence.pages import read_page


def replicas_differ(pages: Mapping[int, Path]) -> bool:
    """A first glance, cheap enough for now and then; the evidence decides."""
    try:
        written = {rank: read_page(page, newest_calls=0).progress for rank, page in pages.items()}
    except EvidenceError:
        return False  # a page that cannot be read now is told of elsewhere
    return differ(written)
