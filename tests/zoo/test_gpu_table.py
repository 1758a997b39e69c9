"""The page about NCCL shows what the programs' results say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ZOO = Path(__file__).resolve().parents[2] / "zoo"
sys.path.insert(0, str(ZOO))

from expectation import NCCL_CASES, case_names  # noqa: E402
from gpu_table import document  # noqa: E402

PAGE = ZOO.parent / "docs" / "nccl.md"
NEWEST = max(ZOO.glob("results/*-nccl.json"))


def test_the_table_of_the_page_is_made_from_the_newest_results() -> None:
    text = PAGE.read_text()
    assert NEWEST.name in text
    shown = text.partition("<!-- nccl: begin -->\n")[2].partition("<!-- nccl: end -->")[0]
    made = document(json.loads(NEWEST.read_bytes()))
    assert shown == made, f"python zoo/gpu_table.py zoo/results/{NEWEST.name}"


def test_every_program_is_in_the_table() -> None:
    assert [row["case"] for row in json.loads(NEWEST.read_bytes())] == list(case_names(NCCL_CASES))
