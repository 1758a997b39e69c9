"""The dataset is prepared once, under a key of tokenizer, dataset, context length and number of samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.cli import main

ROW = "1.2"
COMMAND_LINE = "rankscope prepare"


def prepare(*overrides: str) -> int:
    words = [word for override in overrides for word in ("--override", override)]
    return main(["prepare", "--debug", "--override", "data_sampling.n_samples=40", *words])


def test_a_second_preparation_finds_the_first_and_another_key_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert prepare() == 0
    first = {path.name for path in (tmp_path / "cache/datasets").iterdir() if path.is_dir()}
    assert len(first) == 1
    made = (tmp_path / "cache/datasets" / next(iter(first)) / "manifest.json").stat().st_mtime_ns
    assert prepare() == 0
    assert (tmp_path / "cache/datasets" / next(iter(first)) / "manifest.json").stat().st_mtime_ns == made
    assert {path.name for path in (tmp_path / "cache/datasets").iterdir() if path.is_dir()} == first
    (tmp_path / "own.txt").write_text("a text of one's own, and long enough for a sample. " * 400)
    others = (
        ("model.context_length=64",),
        ("data_sampling.n_samples=41",),
        ("data.tokenizer=bpe", "data.tokenizer_vocab_size=300", "data.source=text", "data.paths=own.txt"),
        ("data.source=text", "data.paths=own.txt"),
    )
    for number, changes in enumerate(others, 2):
        assert prepare(*changes) == 0
        assert len(list((tmp_path / "cache/datasets").glob("*/manifest.json"))) == number, changes
