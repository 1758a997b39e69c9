"""All ranks hear each other before anyone acts; who waits stands still, and who never comes is named."""

from __future__ import annotations

import threading

import pytest
from torch._C._distributed_c10d import HashStore

from rankscope.distributed.agreement import everybody_says
from rankscope.distributed.failures import NoRendezvous


def test_every_rank_hears_all_words_in_the_order_of_the_ranks() -> None:
    store = HashStore()
    heard: dict[int, list[str]] = {}

    def speak(rank: int) -> None:
        heard[rank] = everybody_says(store, "backend", rank, 3, f"word {rank}", 60.0)

    threads = [threading.Thread(target=speak, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(heard.values()) == [["word 0", "word 1", "word 2"]] * 3


def test_ranks_that_never_come_are_named() -> None:
    with pytest.raises(NoRendezvous, match=r"ranks 1, 2 of 3 did not come within 0\.1 s \(backend\)"):
        everybody_says(HashStore(), "backend", 0, 3, "nccl", 0.1)


def test_a_rank_that_waits_asks_nothing_again_and_again() -> None:
    class Counting:
        """A store that counts what it is asked; a rank that polls would look alive to whoever watches it."""

        def __init__(self) -> None:
            self.store = HashStore()
            self.asked: list[str] = []

        def __getattr__(self, name: str) -> object:
            self.asked.append(name)
            return getattr(self.store, name)

    counting = Counting()
    with pytest.raises(NoRendezvous):
        everybody_says(counting, "backend", 0, 2, "nccl", 0.3)
    assert counting.asked == ["set", "wait", "check", "check"]
