"""Every row has a test file of its own, and docs/features.md says what the tests say."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import features

ROWS = {0: 8, 1: 10, 2: 6, 3: 7, 4: 9}
"""How many each of the five teams' notes has."""


def test_the_page_is_made_from_the_tests() -> None:
    assert features.PAGE.read_text("utf-8") == features.page(), "run: python scripts/features.py --write"


def test_every_row_is_tested() -> None:
    wanted = {f"{team}.{row}" for team, count in ROWS.items() for row in range(1, count + 1)}
    found = [row.number for row in features.rows()]
    assert set(found) == wanted
    assert len(found) == len(wanted)
    for row in features.rows():
        assert row.file.startswith(f"test_row_{row.number.replace('.', '_')}_")
        assert row.tests
        assert row.what
        assert row.command
