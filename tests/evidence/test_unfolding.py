"""A rank's calls kept as columns read like the tuple of calls that they stand for."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rankscope.evidence import unfolding
from rankscope.evidence.encode import to_json
from rankscope.evidence.model import Call, Collective, Frame
from rankscope.evidence.unfolding import OWN_OF_CALL, OWN_OF_COLLECTIVE, Common, Unfolding, numbers, times

HERE = (Frame("main", "/job/train.py", 7, user=True),)


def calls(count: int, chance: random.Random) -> tuple[Call, ...]:
    left = [None if chance.random() < 0.3 else chance.uniform(5, 6) for _ in range(count)]
    threads = [chance.choice((7, 7, 7, 1 << 40)) for _ in range(count)]
    return tuple(
        Call(n, "all_reduce", "0", n + 1, threads[n], 0, chance.uniform(1, 2), left[n], False, n, -1, 10, "half", HERE)
        for n in range(count)
    )


def collectives(count: int, chance: random.Random) -> tuple[Collective, ...]:
    first = chance.randrange(1000)
    return tuple(
        Collective(first + n, "0", n, 0, "all_reduce", "gloo", False, "completed", True, chance.random(), ((n, 2),))
        for n in range(count)
    )


def folded(entries: tuple[Any, ...], kind: type[Any]) -> Unfolding[Any]:
    own = OWN_OF_CALL if kind is Call else OWN_OF_COLLECTIVE
    columns = [[getattr(entry, name) for entry in entries] for name in own]
    small = [
        numbers(column) if name in ("thread", "record_id") else times(column)
        for name, column in zip(own, columns, strict=True)
    ]
    return Unfolding(Common([replace(entry, thread=0) for entry in entries], kind), small)


@pytest.mark.parametrize("kind", [Call, Collective])
@pytest.mark.parametrize("kept", [1, unfolding._KEPT])
def test_it_reads_like_the_tuple(kind: type[Any], kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfolding, "_KEPT", kept)
    for seed in range(30):
        chance = random.Random(seed)
        count = chance.randrange(12)
        entries: tuple[Any, ...] = (calls if kind is Call else collectives)(count, chance)
        seen = folded(entries, kind)
        assert len(seen) == count
        assert bool(seen) == bool(entries)
        for _ in range(10):
            first, last = (chance.choice((None, *range(-9, 10))) for _ in range(2))
            part = slice(first, last, chance.choice((None, -1, 1, 2)))
            assert seen[part] == entries[part]
        for at in range(-count, count):
            assert seen[at] == entries[at]
        for at in (-count - 1, count):
            with pytest.raises(IndexError):
                seen[at]
        assert (*seen,) == entries
        assert list(reversed(seen)) == list(reversed(entries))
        assert seen == entries
        assert entries == seen
        assert seen == folded(entries, kind)
        assert (seen != entries[1:]) == bool(entries)
        assert hash(seen) == hash(entries)
        assert (seen + entries, entries + seen) == (entries + entries, entries + entries)
        assert repr(seen) == repr(entries)
        assert all(entry in seen for entry in entries)
        assert to_json({"calls": seen}) == to_json({"calls": entries})


def test_what_was_made_of_other_ranks_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfolding, "_KEPT", 100)
    many = [folded(calls(30, random.Random(n)), Call) for n in range(20)]
    first = many[0].entries()
    assert many[0].entries() is first
    for each in many[1:]:
        each.entries()
    assert many[0].entries() is not first
    assert many[0].entries() == first
    assert unfolding._recent._count <= 100


def test_text_that_is_no_utf_8_is_told_from_columns_too() -> None:
    entries = tuple(replace(call, op="all_\udcff") for call in calls(3, random.Random(1)))
    told = msgspec.json.decode(to_json(folded(entries, Call)))
    assert [call["op"] for call in told] == ["all_\\udcff"] * 3


def test_other_objects_have_no_json() -> None:
    with pytest.raises(TypeError, match="object"):
        to_json(object())
