"""A connection of our own to the rendezvous store, with a time limit on every word."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from rankscope.evidence.time_limit import call_within
from rankscope.launch.nodes.seal import Seal, Word

T = TypeVar("T")
BATCH = 32
"""Parcels and first words fetched at a time: one answer of the store has a time limit."""
_DIGITS = 9
"""Of a node's number."""
ANSWER_LIMIT_S = 4.0
CONNECT_LIMIT_S = 30.0
"""For the first connection: torch looks up the names of both ends, and a slow name server must not cost us the nodes.
Later ones are made where something is wrong already."""


class ChannelLost(Exception):
    """The store does not answer any more."""


class Channel:
    """Keys and values, shared by the launchers of one attempt. Used by one thread at a time."""

    def __init__(
        self,
        connect: Callable[[float], Any],
        prefix: str,
        key: bytes | None = None,
        store_at: tuple[str, int] | None = None,
        *,
        only_sealed: bool = False,
    ) -> None:
        self.only_sealed = only_sealed
        """All nodes were given the key: whoever speaks without its seal is none of them."""
        self.store_at = store_at
        """Address and port of the store."""
        self._connect = connect
        self._seal = Seal(key)
        self._store: Any = None
        self._connect_limit_s = CONNECT_LIMIT_S
        self._prefix = prefix
        self._lock = threading.Lock()
        self.lost: str | None = None
        """Why the last word was not answered; the next one is tried over a new connection."""

    def set(self, key: str, value: bytes) -> None:
        self._ask(lambda: self._store.set(self._prefix + key, value))

    def set_missing(self, values: Mapping[str, bytes]) -> None:
        """Sets those of the keys that nobody has set."""

        def leave() -> None:
            names = [self._prefix + key for key in values]
            if self._store.check(names):
                return
            for key, value in values.items():
                if not self._store.check([self._prefix + key]):
                    self._store.set(self._prefix + key, value)

        self._ask(leave)

    @property
    def has_key(self) -> bool:
        return self._seal.has_key

    def say(self, key: str, word: bytes) -> None:
        """Sets it under the job's seal."""
        self.set(key, self._seal.close(self._prefix + key, word))

    def hear(self, keys: Sequence[str]) -> list[Word | None]:
        """What was said there, and whether under the seal; as `read`."""
        said = self.read(keys)
        return [
            None if data is None else self._seal.open(self._prefix + key, data)
            for key, data in zip(keys, said, strict=True)
        ]

    def append(self, key: str, value: bytes) -> None:
        """Adds to a list that everyone may add to; one read brings all of it."""
        self._ask(lambda: self._store.append(self._prefix + key, value))

    def listed(self, key: str, most: int) -> list[int]:
        """The nodes that have added themselves to a list, of so many."""
        return numbers_in(self.read([key])[0] or b"", most)

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of the keys that are set; never waits for one."""

        def look() -> list[bytes | None]:
            names = [self._prefix + key for key in keys]
            if self._store.check(names):
                return list(self._store.multi_get(names))
            there = [name for name in names if self._store.check([name])]
            found = dict(zip(there, self._store.multi_get(there), strict=True)) if there else {}
            return [found.get(name) for name in names]

        return self._ask(look)

    def _ask(self, question: Callable[[], T]) -> T:
        with self._lock:
            if self.lost is not None:
                self._store = None  # a late answer would be taken for that to another question
            limit = self._connect_limit_s
            try:
                if self._store is None:
                    self._store = call_within(limit, lambda: self._connect(limit))
                    self._connect_limit_s = ANSWER_LIMIT_S
                limit = ANSWER_LIMIT_S
                answer = call_within(limit, question)
                self.lost = None
                return answer
            except TimeoutError as error:
                self.lost = f"no answer within {limit:g} s"
                raise ChannelLost(self.lost) from error
            except (RuntimeError, OSError) as error:  # torch's network errors are RuntimeErrors
                self.lost = (str(error).splitlines() or ["connection lost"])[0][:200]
                raise ChannelLost(self.lost) from error


def numbers_in(named: bytes, most: int) -> list[int]:
    """The nodes that a list names, of so many. Everyone may add to it, and an honest node adds itself once."""
    numbers = named[: 16 * most].split(b",")
    return sorted({int(each) for each in numbers if len(each) <= _DIGITS and each.isdigit() and int(each) < most})


def batches(items: list[T], size: int) -> list[list[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def tcp_store_of(store: Any) -> Any | None:
    """The TCP store beneath prefixes; None for other kinds."""
    from torch._C._distributed_c10d import TCPStore

    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store if isinstance(store, TCPStore) else None


def connect(store: Any, prefix: str, key: bytes | None = None, *, only_sealed: bool = False) -> Channel | None:
    """A second connection to the same store, so that nobody waits for anybody else's words."""
    from torch._C._distributed_c10d import TCPStore

    base = tcp_store_of(store)
    if base is None:
        return None
    address, port = base.host, base.port
    first = True

    def open_store(limit_s: float) -> Any:
        nonlocal first
        if not first:
            # torch writes a page to the terminal about every connection that fails: it is asked where one can be made.
            # Not the first time, when elastic itself has just used the store: for a visitor who leaves without a word
            # the store looks up a name, and answers nobody until the name server has answered.
            socket.create_connection((address, port), timeout=ANSWER_LIMIT_S / 2).close()
        first = False
        opened = TCPStore(address, port, None, False, timedelta(seconds=limit_s), wait_for_workers=False)
        opened.set_timeout(timedelta(seconds=ANSWER_LIMIT_S))
        return opened

    return Channel(open_store, prefix, key, (address, port), only_sealed=only_sealed)


def serves(port: int) -> bool:
    """This very process listens on the port: it holds the store."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}", encoding="ascii") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") in inodes:
                return True
        except OSError:
            continue  # closed meanwhile
    return False
