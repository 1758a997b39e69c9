"""All ranks say something and hear everybody, before any of them acts on it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from rankscope.distributed.failures import NoRendezvous

_kept: list[Any] = []
"""Rank 0 may serve the store itself: it must not end before the process does."""


def everybody_says(store: Any, topic: str, rank: int, world_size: int, word: str, timeout_s: float) -> list[str]:
    """What each rank said on the topic, in their order. Raises NoRendezvous naming the ranks that never spoke.

    A rank that waits here stands still and asks nothing, so that whoever watches it sees a rank that waits.
    """
    from torch.distributed import DistNetworkError, DistStoreError

    keys = [f"{topic}/{other}" for other in range(world_size)]
    try:
        store.set(keys[rank], word)
        try:
            store.wait(keys, timedelta(seconds=timeout_s))
        except DistStoreError:  # the time is over
            _complain(store, topic, keys, timeout_s)
        return [store.get(key).decode() for key in keys]
    except DistNetworkError as error:
        first = str(error).splitlines()[0]
        raise NoRendezvous(f"the store of the ranks went away ({first}): see how rank 0 ended") from error


def _complain(store: Any, topic: str, keys: list[str], timeout_s: float) -> None:
    silent = [rank for rank, key in enumerate(keys) if not store.check([key])]
    if silent:
        names = ", ".join(map(str, silent))
        raise NoRendezvous(
            f"rank{'' if len(silent) == 1 else 's'} {names} of {len(keys)} did not come within {timeout_s:g} s "
            f"({topic}): see whether they were started, and what they do"
        )


def open_store(place: Any, timeout_s: float, *, serve: bool = True) -> Any:
    """A connection of its own to the store that the ranks talk through; a wait on one holds up no other.

    Raises NoRendezvous where rank 0 cannot be reached.
    """
    from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

    if not place.launched:
        return HashStore()
    try:
        store = TCPStore(
            place.address,
            place.port,
            place.world_size,
            is_master=serve and place.rank == 0 and not place.store_is_served,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise NoRendezvous(
            f"the store at {place.address}:{place.port} cannot be reached ({first}): "
            "is rank 0 started, and is the port open between the machines?"
        ) from error
    # A restarted job finds its launcher's store as the last attempt left it.
    _kept.append(store)
    return PrefixStore(f"rankscope/{_attempt()}", store)


def _attempt() -> str:
    import os

    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def first_word(words: list[str], wrong: Callable[[str], bool]) -> tuple[int, str] | None:
    """The first rank, with its word, for which `wrong` is true."""
    return next(((rank, word) for rank, word in enumerate(words) if wrong(word)), None)
