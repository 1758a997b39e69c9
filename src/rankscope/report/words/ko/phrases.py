"""Pieces of Korean sentences: ranks, places, times. Each can take a particle: `f"{ranks_text(ranks):이}"`."""

from __future__ import annotations

from collections.abc import Iterable

from rankscope.diagnosis.verdict import Where
from rankscope.report.words import phrases as english
from rankscope.report.words.ko.particles import Word

NO_LINE = Word("기록되지 않은 줄")


def rank_list(ranks: Iterable[int], most: int = 12) -> Word:
    return Word(english.rank_list(ranks, most, more="{pieces} 외 {count}개"))


def ranks_text(ranks: Iterable[int]) -> Word:
    """`랭크 3`, `랭크 0-2, 4`."""
    return Word(f"랭크 {rank_list(ranks)}")


def who(rank: int | None) -> Word:
    return Word(f"랭크 {rank}") if rank is not None else Word("로그가 이름을 밝히지 않은 랭크")


def place(at: Where | None) -> Word:
    """`push_metrics (train.py:88)`, as in English."""
    return Word("알 수 없는 줄") if at is None else Word(english.place(at))


def with_victims(text: str, culprits: int, victims: tuple[int, ...], *, failed: bool) -> str:
    """`랭크 2가 ...; 랭크 0, 1이 이를 기다린다`."""
    if not victims or not culprits:
        return text
    return f"{text}; {ranks_text(victims):이} {'함께 실패했다' if failed else '이를 기다린다'}"


def span(seconds: float) -> Word:
    """`12초`, `12분`, `3시간`, `4일`."""
    for size, name in ((86400, "일"), (3600, "시간"), (60, "분")):
        if seconds >= 2 * size:
            return Word(f"{seconds / size:.0f}{name}")
    return Word(f"{seconds:.0f}초")


def duration(seconds: float) -> Word:
    """`1.8초`, `12분 5초`, `3시간 20분`."""
    if seconds < 59.95:
        return Word(f"{seconds:.1f}초")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return Word(f"{minutes}분 {rest}초")
    return Word(f"{minutes // 60}시간 {minutes % 60}분")


def after_steps(count: int, what: str = "스텝") -> Word:
    """`5스텝 후`: how many were made."""
    return Word(f"{count:,} {what} 후")
