"""What many ranks have in common travels once between the nodes, and is one object where it is read."""

from __future__ import annotations

import json
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from rankscope.evidence.model import (
    Call,
    Collective,
    Evidence,
    Frame,
    Group,
    Progress,
    RankEvidence,
    StackSample,
    Thread,
)
from rankscope.launch.nodes.bounds import TooMuch
from rankscope.launch.nodes.parcel import Packed, pack, unpack
from rankscope.launch.nodes.parts import Library, OfRank, Parcel, name_of

RECORDED = Path(__file__).resolve().parents[2] / "zoo" / "recorded"
HERE = Frame("main", "/job/train.py", 7, user=True)


def rank(number: int, at: float) -> RankEvidence:
    """All ranks do the same; only when, and in which thread, differs."""
    calls = tuple(
        Call(n, "all_reduce", "0", n + 1, 70 + number, 0, at + n, at + n + 0.5, False, n, -1, 10, "float32", (HERE,))
        for n in range(40)
    )
    collectives = tuple(
        Collective(n + number, "0", n + 1, 0, "all_reduce", "gloo", False, "completed", True, at + n, ((10,),))
        for n in range(40)
    )
    stacks = (StackSample(at + 50, (Thread(70 + number, "MainThread", True, (HERE,)),), "py-spy"),)
    progress = Progress("step", at, 3, 3, at, 8, 40, calls, ())
    tail = ("step 3", "step 4")
    return RankEvidence(
        number, number, "node-0", 40 + number, at, None, progress, stacks, (), (), collectives, output_tail=tail
    )


def node(*ranks: RankEvidence) -> Evidence:
    return Evidence(1, 900.0, 100.0, "still", 8, ranks)


def brought(packed: Packed, library: Library) -> tuple[Evidence, int]:
    """The evidence, and how many parts had to be fetched for it."""
    parcel = unpack(packed.data)
    wanted = library.lacks(parcel)
    for name, kind in wanted.items():
        library.add(name, kind, packed.parts[name], 8)
    return library.open(parcel), len(wanted)


def test_evidence_of_real_jobs_is_the_same_after_its_way() -> None:
    paths = sorted(path for path in RECORDED.rglob("*.json.xz") if path.stat().st_size < 9000)[:40]
    assert paths
    for path in paths:
        for look in json.loads(lzma.decompress(path.read_bytes()))["looks"]:
            seen = msgspec.json.decode(json.dumps(look["evidence"]), type=Evidence)
            assert brought(pack(seen), Library())[0] == seen, path.name


def test_what_ranks_have_in_common_travels_once_and_is_one_object() -> None:
    library = Library()
    first, second = node(rank(0, 100.0), rank(1, 103.25)), node(rank(2, 101.5), rank(3, 107.0))
    one, fetched = brought(pack(first), library)
    other, again = brought(pack(second), library)
    assert (one, other) == (first, second)
    assert again < fetched
    seen = [each for part in (one, other) for each in part.ranks]
    assert len({each.progress.calls[3].entered_at for each in seen if each.progress is not None}) == 4
    assert len({id(each.progress.calls[3].site) for each in seen if each.progress is not None}) == 1
    assert len({id(each.collectives[3].input_sizes) for each in seen}) == 1
    assert len({id(each.stacks[0].threads[0].frames) for each in seen}) == 1
    assert len({id(each.output_tail) for each in seen}) == 1


def test_a_second_look_brings_only_what_has_changed() -> None:
    library = Library()
    first = node(rank(0, 100.0), rank(1, 103.25))
    one, _ = brought(pack(first), library)
    moved = replace(first.ranks[1], output_tail=("x",))
    later = replace(first, ranks=(replace(first.ranks[0], still_for_s=9.0), moved))
    two, fetched = brought(pack(later), library)
    assert two == later
    assert fetched == 1  # the new output
    assert two.ranks[0].collectives is one.ranks[0].collectives
    library.trim()
    assert brought(pack(later), library)[1] == 0


def test_a_part_with_other_content_than_was_sent_is_refused() -> None:
    packed = pack(node(rank(0, 100.0)))
    calls = next(name for name, kind in unpack(packed.data).parts().items() if kind == "calls")
    with pytest.raises(TooMuch, match="not what it is called"):
        Library().add(calls, "calls", zlib.compress(b"[]"), 1)


def without_one_part(parcel: Parcel, _library: Library) -> Parcel:
    return msgspec.structs.replace(parcel, sources="0" * 40)


def with_parts_of_another_kind(parcel: Parcel, _library: Library) -> Parcel:
    return with_parts(parcel, calls=parcel.ranks[0].collectives)


def with_fewer_times_than_calls(parcel: Parcel, library: Library) -> Parcel:
    text = b"[[[[1],[1.0],[null]],null]]"
    name = name_of("own", text)
    library.add(name, "own", zlib.compress(text), 1)
    return msgspec.structs.replace(parcel, own=name)


def with_a_field_that_nobody_knows(parcel: Parcel, _library: Library) -> Parcel:
    return with_parts(parcel, fields={"rank": parcel.sources})


def with_parts_of_more_ranks(parcel: Parcel, _library: Library) -> Parcel:
    return msgspec.structs.replace(parcel, ranks=parcel.ranks * 2)


def with_parts(parcel: Parcel, **changed: object) -> Parcel:
    parts: OfRank = msgspec.structs.replace(parcel.ranks[0], **changed)
    return msgspec.structs.replace(parcel, ranks=(parts,))


@pytest.mark.parametrize(
    "spoil",
    [
        without_one_part,
        with_parts_of_another_kind,
        with_fewer_times_than_calls,
        with_a_field_that_nobody_knows,
        with_parts_of_more_ranks,
    ],
)
def test_a_parcel_that_does_not_hold_together_is_refused(spoil: Callable[[Parcel, Library], Parcel]) -> None:
    packed, library = pack(node(rank(0, 100.0))), Library()
    brought(packed, library)
    with pytest.raises(TooMuch):
        library.open(spoil(unpack(packed.data), library))


@pytest.mark.parametrize("ranks", [2_000_000, 10**12])
def test_nobody_counts_up_to_the_ranks_that_a_stranger_names(ranks: int) -> None:
    seen = rank(0, 100.0)
    assert seen.progress is not None
    one = replace(seen, progress=replace(seen.progress, declared_world=ranks))
    other = replace(seen, groups=(Group("0", "", (0, ranks)),))
    for spoiled in (node(one), node(other), replace(node(seen), world_size=ranks)):
        with pytest.raises(TooMuch, match="no job has so many"):
            brought(pack(spoiled), Library())
