"""Evidence of nodes that were never there, and launchers that exchange it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rankscope.evidence.model import Evidence, Progress, RankEvidence
from rankscope.launch.events import Ruled, StoppedElsewhere
from rankscope.launch.nodes.exchange import Exchange
from rankscope.launch.nodes.opening import open_exchange


def rank(number: int, host: str, **more: Any) -> RankEvidence:
    return RankEvidence(rank=number, local_rank=number, host=host, pid=number + 10, started_at=1000.0, **more)


def evidence(*ranks: RankEvidence, world: int = 4, **more: Any) -> Evidence:
    return Evidence(1, 1100.0, 1000.0, "still", world, ranks, **more)


def progress(changed_at: float) -> Progress:
    return Progress("step", 1000.0, 1, 1, changed_at, 2, 0, (), ())


class Team:
    """Launchers of one job in this process, over a real store, with made-up evidence."""

    def __init__(
        self,
        count: int,
        key: bytes | None = b"known to all of them",
        *,
        speaker: int = 1,
        store: Any = None,
        attempt: str = "mark",
        order: Sequence[int] | None = None,
        only_sealed: bool = False,
    ) -> None:
        from torch._C._distributed_c10d import TCPStore

        limit = timedelta(seconds=20)
        self.store: Any = store or TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
        self.rulings: dict[int, list[Ruled]] = {number: [] for number in range(count)}
        self.stops: dict[int, list[StoppedElsewhere]] = {number: [] for number in range(count)}
        self.notes: list[str] = []
        made: dict[int, Exchange] = {}
        for number in order or range(count):
            opened = open_exchange(
                self.store,
                node=number,
                nodes=count,
                host=f"node-{number}",
                ranks=(number,),
                attempt_key=attempt,
                collect=lambda _trigger, number=number: evidence(rank(number, f"node-{number}"), world=count),  # type: ignore[misc]
                hand_over=functools.partial(self.hear, number),
                note=self.notes.append,
                holds_store=number == speaker,
                key=key,
                only_sealed=only_sealed,
            )
            assert opened is not None
            made[number] = opened
        self.nodes = [made[number] for number in sorted(made)]

    def hear(self, number: int, event: Ruled | StoppedElsewhere) -> None:
        if isinstance(event, Ruled):
            self.rulings[number].append(event)
        else:
            self.stops[number].append(event)

    def close(self) -> None:
        closing = [threading.Thread(target=node.close, args=("ended",)) for node in self.nodes]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
