"""Spoiled copies of real files: a reader refuses them or reads what is left, and never fails."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import fuzz

FILES = fuzz.seeds()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(range(len(FILES))), st.sampled_from(fuzz.NAMES))
def test_no_spoiled_file_is_a_traceback(tmp_path_factory, seed: int, which: int, name: str) -> None:  # type: ignore[no-untyped-def]
    chance = random.Random(seed)
    path = tmp_path_factory.mktemp("spoiled") / name
    path.write_bytes(fuzz.spoil(FILES[which], chance.choice(FILES), chance))
    assert fuzz.read(path) is None


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=400), st.sampled_from(fuzz.NAMES), st.sampled_from([b"", b"\x80\x02", b"{", b"[{", b"[rank0]: "])
)
def test_no_bytes_are_a_traceback(tmp_path_factory, data: bytes, name: str, head: bytes) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("bytes") / name
    path.write_bytes(head + data)
    assert fuzz.read(path) is None
