"""What `benchmarks/fuzz.py` found, one small input each: every one was a traceback, endless, or took gigabytes."""

from __future__ import annotations

import json
import lzma
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rankscope.diagnosis.codec import verdict_from_json
from rankscope.errors import EvidenceError
from rankscope.evidence.flight import parse_flight_pickle
from rankscope.evidence.kernel import telling_lines
from rankscope.evidence.model import SCHEMA, Evidence, RankEvidence
from rankscope.evidence.nan_dump import read_nan_dump
from rankscope.evidence.pages import read_page
from rankscope.evidence.ras_text import parse_answer
from rankscope.evidence.readers.columns import KindTable
from rankscope.evidence.readers.gather import gather
from rankscope.evidence.readers.record import read_pickle
from rankscope.evidence.stacks import parse_faulthandler, parse_py_spy
from rankscope.evidence.stages import StageReader
from rankscope.evidence.store import load_evidence, save_evidence
from rankscope.evidence.tracebacks import find_tracebacks
from rankscope.probe import page as layout
from rankscope.probe.page import Page
from rankscope.report.conclude import conclude

MEMO = b"\x80\x02}r\xff\xff\xff\x7f."
"""Asks for a table of two thousand million entries, 32 GB."""
DEEP = b"[" * 100_000
MANY_DIGITS = "9" * 5000


def incident(**changes: Any) -> dict[str, Any]:
    rank = {"rank": 0, "bad_parameters": [{"name": "w", "nan": 1}], "bad_gradients": [], **changes}
    return {"step": 7, "kind": "parameter", "origins": [0], "ranks": [rank]}


def nan_file(folder: Path, content: object) -> Path:
    path = folder / "nan_debug_step_7.pkl"
    path.write_bytes(pickle.dumps({"incident": content}, protocol=2))
    return path


def test_a_pickle_that_asks_for_a_large_memo_is_refused() -> None:
    with pytest.raises(EvidenceError):
        parse_flight_pickle(MEMO)
    with pytest.raises(EvidenceError, match="memory"):
        read_pickle(MEMO, KindTable())


def test_so_is_one_of_a_step_that_was_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "step.pkl"
    path.write_bytes(MEMO[:-1] + b"X\x08\x00\x00\x00incident.")
    with pytest.raises(EvidenceError, match="memory"):
        read_nan_dump(path)


def test_a_broken_step_is_refused_whatever_its_pickle_raises(tmp_path: Path) -> None:
    path = tmp_path / "step.pkl"
    path.write_bytes(b"\x80\x02}X\x08\x00\x00\x00incidentK\x01K\x02a.")  # appends to a number
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_nan_dump(path)
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_nan_dump(nan_file(tmp_path, incident(bad_parameters=[["w"]])))


@pytest.mark.parametrize("rank", [2**31, -1, 10**30])
def test_a_step_of_a_rank_that_no_job_has_is_refused(tmp_path: Path, rank: int) -> None:
    with pytest.raises(EvidenceError, match="no job has"):
        read_nan_dump(nan_file(tmp_path, incident(rank=rank)))


def test_brackets_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    path.write_bytes(b'{"schema": 1, "collected_at": ' + DEEP)
    with pytest.raises(EvidenceError, match="damaged"):
        load_evidence(path)
    assert gather([str(path)]).refused
    with pytest.raises(EvidenceError):
        verdict_from_json(b'{"schema": 2, "x": ' + DEEP)
    with pytest.raises(ValueError, match="py-spy's answer"):
        parse_py_spy(DEEP, 1, None)
    with pytest.raises(EvidenceError):
        parse_answer('{"communicators": ' + DEEP.decode(), 1.0)


@pytest.mark.parametrize("size", [MANY_DIGITS, "3000000000"])
def test_an_answer_of_nccl_about_groups_that_no_job_has_is_refused(size: str) -> None:
    row = f"  0 1 1 8 {size} 8 RUNNING OK"
    with pytest.raises(EvidenceError, match="RAS"):
        parse_answer(f"NCCL version 2.28.9 compiled with CUDA 13.0\n{row}\n", 1.0)


def test_numbers_of_thousands_of_digits_are_no_numbers() -> None:
    assert telling_lines([f"3,1,{MANY_DIGITS},-;Out of memory: Killed process 1".encode()], 0.0, 1.0) == ()
    lines = ["Traceback (most recent call last):", f'  File "a.py", line {MANY_DIGITS}, in f', "E: x"]
    assert find_tracebacks(lines) == ()
    assert parse_faulthandler(f'Thread 0x1 (most recent call first):\n  File "a.py", line {MANY_DIGITS} in f\n')


def test_of_a_page_that_a_wild_write_hit_the_rest_is_read_and_the_damage_told(tmp_path: Path) -> None:
    page = Page(str(tmp_path / "0-1.page"), 0)
    page.group("0", "default_pg", [0, 1])
    page.exception("ValueError", "no", "MainThread", [])
    page.exception("KeyError", "x", "MainThread", [])
    path = Path(page.path)
    data = bytearray(path.read_bytes())
    at = data.index(b"ValueError")
    data[at : at + 12] = b"\xff" * 12
    path.write_bytes(data)
    read = read_page(path)
    assert [error.type for error in read.exceptions] == ["KeyError"]
    assert [group.ranks for group in read.progress.groups] == [(0, 1)]
    assert any("damaged" in words for words in read.progress.probe_errors)


def test_a_page_that_claims_a_huge_heap_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    page = Page(str(tmp_path / "0-1.page"), 0)
    begun = layout.STAGES_HEAD.unpack_from(page.map, layout.STAGES_OFFSET)
    layout.STAGES_HEAD.pack_into(page.map, layout.STAGES_OFFSET, 1, *begun[1:])
    told = list(layout.IDENTITY.unpack_from(page.map, 0))
    told[4] = 2**32 - 1
    layout.IDENTITY.pack_into(page.map, 0, *told)
    assert len(StageReader(Path(page.path)).read().begun) == 1


def test_a_world_that_no_job_has_is_not_counted_up_to(tmp_path: Path) -> None:
    page = Page(str(tmp_path / "0-1.page"), 0)
    page.declare(0, 2**31 - 1)
    progress = read_page(Path(page.path)).progress
    assert progress.declared_world == 0
    rank = RankEvidence(0, 0, "", 0, 1.0, progress=replace(progress, declared_world=2**31))
    save_evidence(Evidence(SCHEMA, 1.0, 1.0, "files", 1, (rank,)), tmp_path / "run")
    with pytest.raises(EvidenceError, match="no job has so many"):
        load_evidence(tmp_path / "run")


def test_a_run_whose_verdict_never_ends_is_read_without_it(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"command": ["train.py"]}))
    (tmp_path / "verdict.json").write_bytes(b'{"outcome": "ok", "world_size": ' + DEEP)
    assert any("verdict.json" in each for each in gather([str(tmp_path)]).refused)


def test_a_call_with_a_number_that_no_job_reaches_is_not_counted_up_to() -> None:
    """Of a real deadlock; the missing calls before that number would fill the memory."""
    recording = Path(__file__).resolve().parents[2] / "zoo" / "recorded" / "gloo" / "anchor_sampling.json.xz"
    seen = json.loads(lzma.decompress(recording.read_bytes()))["looks"][-1]["evidence"]
    seen["ranks"][0]["collectives"][-1]["seq"] = 140_272_698_456_960
    assert conclude(msgspec.json.decode(json.dumps(seen), type=Evidence)).outcome
