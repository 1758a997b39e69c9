"""What launchers say to each other: small values, one key each."""

from __future__ import annotations

import msgspec

from rankscope.diagnosis.codec import verdict_from_json, verdict_to_json
from rankscope.launch.events import Reason, Ruled, TellNodes


class Hello(msgspec.Struct, frozen=True):
    """Said once, when the ranks of a node have started."""

    node: int
    """The node's number in the rendezvous."""
    host: str
    address: str
    port: int
    """Of the door."""
    ranks: tuple[int, ...]
    pid: int
    holds_store: bool


class Beat(msgspec.Struct, frozen=True):
    """Said again and again: a launcher whose beat stops is silent."""

    number: int
    at: float
    still: bool = False
    """At least one rank of the node has been still long enough to look closely."""
    wants: int = 0
    """How many looks this node has asked for."""
    failed: bool = False
    """A rank of the node has failed: the look is for that."""
    ended: str = ""
    """The launcher has ended in order, and how."""
    numbers: int = 0
    """How many looks at values that are not finite, or not equal, this node has asked for."""


class Call(msgspec.Struct, frozen=True):
    """The speaker wants evidence."""

    number: int
    trigger: str


class Ruling(msgspec.Struct, frozen=True):
    """The speaker's verdict, and what every node does about it."""

    number: int
    verdict: bytes
    stop: bool
    reason: Reason
    signal: int | None = None

    def as_event(self, speaker: str) -> Ruled:
        return Ruled(verdict_from_json(self.verdict), self.stop, self.reason, self.signal, speaker)


def ruling(number: int, told: TellNodes) -> Ruling:
    return Ruling(number, verdict_to_json(told.verdict), told.stop, told.reason, told.signal)


def encode(word: Hello | Beat | Call | Ruling) -> bytes:
    return msgspec.msgpack.encode(word)
