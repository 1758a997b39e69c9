"""The words for two sides of a divergence tell them apart."""

from __future__ import annotations

import factories as make

from rankscope.diagnosis.divergence import Divergence, Side
from rankscope.diagnosis.rules.divergence.side_words import side_text
from rankscope.diagnosis.timeline import Event
from rankscope.evidence.model import Frame


def side(rank: int, *site: Frame, op: str = "broadcast", root: int = 0, dtype: str = "float32") -> Side:
    event = Event("0", 7, op, 1.0, False, "gloo", 5, dtype, root, 3, site, 1)
    return Side((rank,), event, site)


def texts(*sides: Side) -> list[str]:
    parted = Divergence("0", 7, sides, 6)
    return [side_text(each, parted) for each in sides]


HERE = make.frame("train.py", 9, "share")


def test_the_root_is_told_where_roots_differ() -> None:
    assert texts(side(0, HERE), side(2, HERE, root=1)) == [
        "rank 0 called broadcast of 5 elements with root 0 at share (train.py:9), after step 3",
        "rank 2 called broadcast of 5 elements with root 1 at share (train.py:9), after step 3",
    ]


def test_the_dtype_is_told_where_dtypes_differ() -> None:
    one, other = texts(side(0, HERE, op="all_reduce"), side(1, HERE, op="all_reduce", dtype="float16"))
    assert "5 elements of float32 at" in one
    assert "5 elements of float16 at" in other


def test_the_caller_is_told_where_both_stand_on_one_line() -> None:
    one, other = texts(
        side(0, HERE, make.frame("train.py", 20, "sample")), side(1, HERE, make.frame("train.py", 31, "main"))
    )
    assert "at share (train.py:9), called from sample (train.py:20)" in one
    assert "at share (train.py:9), called from main (train.py:31)" in other


def test_nothing_is_added_where_the_lines_tell_the_sides_apart() -> None:
    assert texts(side(0, HERE), side(1, make.frame("train.py", 12, "main"))) == [
        "rank 0 called broadcast of 5 elements at share (train.py:9), after step 3",
        "rank 1 called broadcast of 5 elements at main (train.py:12), after step 3",
    ]
