"""What launchers say to each other: small values, one key each."""

from __future__ import annotations

import ipaddress
import re
from typing import TypeVar

import msgspec

from rankscope.diagnosis.codec import verdict_from_json, verdict_to_json
from rankscope.errors import EvidenceError
from rankscope.launch.events import Reason, Ruled, TellNodes
from rankscope.launch.nodes.bounds import plain_json

MOST_RANKS = 1024
"""Of one node."""
HOST = re.compile(r"[\w.:@-]{1,255}")
"""What a machine may be called."""


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
    done: bool = False
    """All ranks of the node have ended well: what becomes of its launcher now harms nobody."""
    signal: int = 0
    """The one that stops the launcher, and its ranks before they had ended."""
    signal_at: float = 0.0
    """When it came, by the speaker's clock."""


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

    def as_event(self, speaker: str, *, verified: bool) -> Ruled:
        """Raises Nonsense."""
        try:
            verdict = verdict_from_json(self.verdict if verified else plain_json(self.verdict))
        except (EvidenceError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise Nonsense(str(error)[:200]) from error
        return Ruled(verdict, self.stop, self.reason, self.signal, speaker, verified)


def ruling(number: int, told: TellNodes) -> Ruling:
    return Ruling(number, verdict_to_json(told.verdict), told.stop, told.reason, told.signal)


_MOST_BYTES = {Hello: 1 << 18, Beat: 1 << 12, Call: 1 << 12, Ruling: 8 << 20}
W = TypeVar("W", Hello, Beat, Call, Ruling)


class Nonsense(Exception):
    """What was said is no word of a launcher."""


def decode(data: bytes, kind: type[W]) -> W:
    """Raises Nonsense."""
    if len(data) > _MOST_BYTES[kind]:
        raise Nonsense(f"a word of {len(data)} bytes")
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Nonsense(str(error)[:200]) from error


def sane_hello(hello: Hello, node: int, nodes: int) -> bool:
    """Whether it can be that node's."""
    try:
        ipaddress.ip_address(hello.address.partition("%")[0])
    except ValueError:
        return False
    return (
        hello.node == node
        and 0 < hello.port < 1 << 16
        and 0 < len(hello.ranks) <= MOST_RANKS
        and all(0 <= rank < nodes * MOST_RANKS for rank in hello.ranks)
        and bool(HOST.fullmatch(hello.host))
    )


def encode(word: Hello | Beat | Call | Ruling) -> bytes:
    return msgspec.msgpack.encode(word)
