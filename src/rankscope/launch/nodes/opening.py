"""How the launchers of one attempt find each other on the rendezvous store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rankscope.addresses import own_address
from rankscope.door import Door, knock
from rankscope.evidence.model import Evidence
from rankscope.launch.events import Ruled, StoppedElsewhere
from rankscope.launch.nodes.channel import Channel, ChannelLost, connect, serves, tcp_store_of
from rankscope.launch.nodes.exchange import Exchange
from rankscope.launch.nodes.seal import key_of_attempt
from rankscope.launch.nodes.words import Hello

_MARK = re.compile(rb"[0-9a-f]{16}")
_UNMET = "unmet"
"""A place where nobody is."""


def open_exchange(
    store: Any,
    *,
    node: int,
    nodes: int,
    host: str,
    ranks: tuple[int, ...],
    attempt_key: str,
    collect: Callable[[str], Evidence],
    hand_over: Callable[[Ruled | StoppedElsewhere], None],
    note: Callable[[str], None],
    holds_store: bool | None = None,
    key: bytes | None = None,
    only_sealed: bool = False,
    run_id: str = "",
) -> Exchange | None:
    """Joins the launchers of this attempt; None, with a note, where the rendezvous has no TCP store.

    `holds_store`: whether this node serves it; None finds out. `key`: what all launchers of the job know, and nobody
    else. `only_sealed`: it was given to all of them, and whoever has it not is a stranger. `run_id`: what the
    rendezvous calls the job, on all nodes.
    """
    base = tcp_store_of(store)
    if base is None:
        note("the rendezvous store is no TCP store: this node sees its own ranks only")
        return None
    key = key_of_attempt(key, run_id, attempt_key, nodes)
    try:
        mark = _attempt_mark(store, node, attempt_key)
    except (RuntimeError, OSError):
        if knock(base.host, base.port) != "gone":
            raise
        mark = _UNMET  # the node with the store is gone already: that is what there is to be told
    if mark is None:
        note("what marks this attempt on the rendezvous store is no mark: this node sees its own ranks only")
        mark = _UNMET
    prefix = f"rankscope/{mark}/"
    channel = connect(store, prefix, key, only_sealed=only_sealed)
    assert channel is not None
    address = own_address(base.host, base.port)
    door = Door(address)
    own = Hello(
        node, host, address, door.port, ranks, os.getpid(), serves(base.port) if holds_store is None else holds_store
    )
    exchange = Exchange(channel, own, nodes, door, collect, hand_over, note)
    # Over elastic's own connection, which is there: whoever is lost from now on is known by name.
    with suppress(ChannelLost):
        exchange.introduce(Channel(lambda _limit: base, prefix, key))
    exchange.start()
    return exchange


def _attempt_mark(store: Any, node: int, attempt_key: str) -> str | None:
    """The same on all nodes, and another one after a restart: the store keeps what earlier attempts said.

    It says where to speak and to look, and proves nothing: whoever reaches the store may write it (see `vouching`).
    None where what is written there cannot be one.
    """
    if node == 0:
        mark = os.urandom(8).hex()
        store.set(attempt_key, mark)
        return mark
    read: bytes = store.get(attempt_key)
    return read.decode("ascii") if _MARK.fullmatch(read) else None
