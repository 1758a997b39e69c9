"""Evidence of other nodes, spoiled: the parcel, the parts that it names, and both as they are packed."""

from __future__ import annotations

import json
import random
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from fuzz_inputs import as_json, recordings, spoil, spoiled_or_warped, warp
from rankscope.evidence.encode import to_json
from rankscope.evidence.model import Evidence
from rankscope.launch.nodes.bounds import TooMuch
from rankscope.launch.nodes.parcel import Packed, merge, pack, unpack
from rankscope.launch.nodes.parts import Library, Parcel, name_of
from rankscope.report.conclude import conclude

RANKS = 8
_LARGEST = 60_000
"""Of evidence that is sent, as text: large recordings hold more of the same, and are slow to spoil."""
_JUDGED = 40
"""One in so many goes to the rules, which are slow."""


@cache
def sent() -> list[Packed]:
    """Of each small recording."""
    small = [data for each in recordings() if len(data := as_json(each)) < _LARGEST]
    return [pack(msgspec.json.decode(data, type=Evidence)) for data in small]


@cache
def parcels() -> list[Any]:
    """The same as values, with the parts under their names."""
    return [
        {
            "parcel": json.loads(zlib.decompress(packed.data)),
            "parts": {name: json.loads(zlib.decompress(part)) for name, part in packed.parts.items()},
        }
        for packed in sent()
    ]


def of_parcels(chance: random.Random) -> bytes:
    """Mostly one place in one of the parts, or in the parcel: what is broken in many is refused at the first."""
    how = chance.random()
    if how < 0.05:
        return spoil(chance.choice(sent()).data, chance.choice(sent()).data, chance)
    if how < 0.15:
        return spoiled_or_warped(parcels(), as_json, chance, 0.3)
    document = chance.choice(parcels())
    parts = document["parts"]
    for _ in range(chance.randint(1, 2)):
        if chance.random() < 0.5:
            name = chance.choice(list(parts))
            parts = {**parts, name: warp(parts[name], chance)}
        else:
            field = chance.choice(("evidence", "evidence", "ranks", "ranks", "own", "sources"))
            parcel = document["parcel"]
            document = {**document, "parcel": {**parcel, field: warp(parcel[field], chance)}}
    return as_json({**document, "parts": parts})


def a_parcel(data: bytes, _folder: Path) -> None:
    """What is opened can be read whole, twice, saved and judged; and the next node's evidence comes as it was sent."""
    packed = spoiled(data)
    library, ranks = Library(), range(RANKS)
    parcel = unpack(packed.data, ranks)
    try:
        seen = brought(parcel, packed.parts, library)
        text = to_json(seen)
        library.trim()
        if to_json(brought(parcel, packed.parts, library)) != text:
            raise AssertionError("opened again it is something else")
        whole = merge(seen, [seen], ())
        if len(text) % _JUDGED == 0:
            conclude(whole)
    finally:
        number = len(data) % (4 * len(sent()))
        if number < len(sent()):
            healthy = sent()[number]
            if to_json(brought(unpack(healthy.data), healthy.parts, library)) != whole_of(number):
                raise AssertionError("what came before has changed the evidence of another node")


@cache
def whole_of(number: int) -> bytes:
    packed = sent()[number]
    return to_json(brought(unpack(packed.data), packed.parts, Library()))


def brought(parcel: Parcel, parts: dict[str, bytes], library: Library) -> Evidence:
    """As the node does that reads it."""
    for name, kind in library.lacks(parcel).items():
        if name in parts:
            library.add(name, kind, parts[name], RANKS)
    return library.open(parcel)


def spoiled(data: bytes) -> Packed:
    """Whoever spoils a part can name it by what it holds now; so can we. Raises TooMuch where nothing is left."""
    if not data.startswith(b"{"):
        return Packed(data, {})
    try:
        document = json.loads(data)
        text, parts = as_json(document["parcel"]).decode(), dict(document["parts"])
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise TooMuch("nothing of a parcel is left") from error
    kinds = unpack(zlib.compress(text.encode(), 1), range(RANKS)).parts()
    named: dict[str, bytes] = {}
    for old, value in parts.items():
        content = as_json(value)
        new = name_of(kinds.get(old, ""), content)
        named[new] = zlib.compress(content, 1)
        if old:
            text = text.replace(old, new)
    return Packed(zlib.compress(text.encode(), 1), named)
