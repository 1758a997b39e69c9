"""Whoever follows a page hears of each stage once, as it begins and as it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.evidence.stages import StageReader
from rankscope.probe.page import STAGE_SLOTS, Page
from rankscope.probe.sites import Sites
from rankscope.probe.stages import StageBook


@pytest.fixture
def book(tmp_path: Path) -> StageBook:
    page = Page(str(tmp_path / "0-1.page"), rank=0)
    return StageBook(page, Sites(page))


def test_news_are_told_once(book: StageBook, tmp_path: Path) -> None:
    reader = StageReader(tmp_path / "0-1.page")
    assert reader.read().begun == ()
    stage = book.begin("wandb.init", "wandb run ready", "logger", None, announce=True)
    book.mark("Args parsed", "arguments", None)
    news = reader.read()
    assert [(each.label, each.left_at is None) for each in news.begun] == [("wandb.init", True), ("Args parsed", False)]
    assert (news.ended, news.missed, news.passed) == ((), 0, 1)
    assert reader.read().begun == ()
    book.end(stage)
    news = reader.read()
    assert news.begun == ()
    assert [(each.label, each.number) for each in news.ended] == [("wandb.init", 2)]
    assert reader.read().ended == ()


def test_many_stages_are_read_across_the_end_of_the_ring_beside_one_that_is_open(
    book: StageBook, tmp_path: Path
) -> None:
    reader = StageReader(tmp_path / "0-1.page")
    for _ in range(STAGE_SLOTS - 5):
        book.mark("batch", "", None)
    reader.read()
    stage = book.begin("evaluation", "evaluated", "", None)
    assert [each.label for each in reader.read().begun] == ["evaluation"]
    for number in range(20):
        book.mark(f"batch {number}", "", None)
    book.end(stage)
    news = reader.read()
    assert [each.label for each in news.begun] == [f"batch {number}" for number in range(20)]
    assert [(each.label, each.left_at is None) for each in news.ended] == [("evaluation", False)]
    assert news.missed == 0


def test_stages_that_nobody_saw_in_time_are_counted(book: StageBook, tmp_path: Path) -> None:
    reader = StageReader(tmp_path / "0-1.page")
    for _ in range(STAGE_SLOTS + 30):
        book.mark("batch", "", None)
    news = reader.read()
    assert (len(news.begun), news.missed, news.passed) == (STAGE_SLOTS, 30, STAGE_SLOTS + 30)


def test_secrets_in_notes_are_masked(book: StageBook, tmp_path: Path) -> None:
    book.mark("Environment changed", "status", None, note="WANDB_API_KEY=0123456789abcdef0123")
    (stage,) = StageReader(tmp_path / "0-1.page").read().begun
    assert "0123456789abcdef" not in stage.note
