"""How the launchers of one attempt find each other on the rendezvous store."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rankscope.addresses import own_address
from rankscope.door import Door, knock
from rankscope.evidence.model import Evidence
from rankscope.launch.events import Ruled, StoppedElsewhere
from rankscope.launch.nodes.channel import Channel, ChannelLost, connect, serves, tcp_store_of
from rankscope.launch.nodes.exchange import Exchange
from rankscope.launch.nodes.words import Hello


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
) -> Exchange | None:
    """Joins the launchers of this attempt; None, with a note, where the rendezvous has no TCP store.

    `holds_store`: whether this node serves it; None finds out. `key`: what all launchers of the job know, and nobody
    else.
    """
    base = tcp_store_of(store)
    if base is None:
        note("the rendezvous store is no TCP store: this node sees its own ranks only")
        return None
    try:
        mark = _attempt_mark(store, node, attempt_key)
    except (RuntimeError, OSError):
        if knock(base.host, base.port) != "gone":
            raise
        mark = "unmet"  # the node with the store is gone already: that is what there is to be told
    prefix = f"rankscope/{mark}/"
    channel = connect(store, prefix, key)
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


def _attempt_mark(store: Any, node: int, attempt_key: str) -> str:
    """The same on all nodes, and another one after a restart: the store keeps what earlier attempts said."""
    if node == 0:
        store.set(attempt_key, os.urandom(8).hex())
    mark: bytes = store.get(attempt_key)
    return mark.decode()
