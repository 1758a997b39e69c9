"""Who takes part in a job on several machines, as one of its launchers knows it: what was heard of whom, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from rankscope.addresses import link_is_down
from rankscope.door import Answer, knock
from rankscope.evidence.model import NodeEvidence
from rankscope.launch.nodes.seal import Word
from rankscope.launch.nodes.words import Beat, Hello, Nonsense, W, decode, sane_hello

SILENT_S = 4.0
"""A node whose beat has not come for so long is asked at its door."""
RESTARTED = "restarted"
"""How a launcher ended that has begun another attempt."""


class Roster:
    """Of one attempt. Says nothing on the store and reads nothing from it: it is told, and knocks at doors."""

    def __init__(self, own: Hello, count: int, note: Callable[[str], None], *, only_sealed: bool = False) -> None:
        self.own = own
        self.count = count
        self._note = note
        self._only_sealed = only_sealed
        self.hellos: dict[int, Hello] = {own.node: own}
        self.beats: dict[int, Beat] = {}
        self.heard: dict[int, float] = {}
        """Node → when it was heard last."""
        self.verified: set[int] = set()
        """Nodes that have the job's key, as we have."""
        self.vouched = False
        """What they have sealed was said in this attempt: see `vouching`."""
        self._refused: set[int] = set()
        self._left_behind: set[int] = set()
        """Nodes that are gone, and were looked for."""

    # What is heard.

    def meet(self, node: int, word: Word) -> None:
        """Its first word."""
        if not word.verified and self._only_sealed:
            self._refuse(node)
            return
        if not word.verified and node in self.hellos:
            return
        hello = self.understood(word, Hello)
        if hello is None or not sane_hello(hello, node, self.count):
            return
        rivals = [n for n, known in self.hellos.items() if n != node and set(known.ranks).intersection(hello.ranks)]
        if any(not word.verified or rival in {*self.verified, self.own.node} for rival in rivals):
            return  # two nodes cannot have the same rank; the seal counts more than who came first
        for rival in rivals:
            del self.hellos[rival]
        self.hellos[node] = hello
        self.heard[node] = time.monotonic()
        if word.verified:
            self.verified.add(node)

    def _refuse(self, node: int) -> None:
        if node not in self._refused:
            self._refused.add(node)
            self._note(f"node {node} was not heard: its first word came without the key of this job")

    def hear(self, node: int, beat: Beat) -> Beat | None:
        """Returns the one before it."""
        before = self.beats.get(node)
        if before is None or beat.number != before.number:
            self.heard[node] = time.monotonic()
        self.beats[node] = beat
        return before

    def was_away(self) -> None:
        """We ourselves were: what the others said meanwhile is heard only now."""
        self.heard = dict.fromkeys(self.heard, time.monotonic())

    def trusted(self, node: int, word: Word | None) -> bool:
        """A node that has the key says nothing without its seal: then somebody else said it."""
        return word is not None and (word.verified or not (self._only_sealed or node in self.verified))

    def understood(self, word: Word, kind: type[W]) -> W | None:
        try:
            return decode(word.content, kind)
        except Nonsense as error:
            self._note(f"a word on the rendezvous store could not be understood: {error}")
            return None

    # What follows from it.

    def others(self) -> list[int]:
        return [node for node in self.hellos if node != self.own.node]

    def knows(self, node: int) -> bool:
        """Whether it is the job's own node beyond doubt, in this attempt."""
        return node == self.own.node or (self.vouched and node in self.verified)

    def silent_s(self, node: int) -> float:
        heard = self.heard.get(node)
        return 0.0 if heard is None else time.monotonic() - heard

    def is_living(self, node: int) -> bool:
        beat = self.beats.get(node)
        return beat is not None and not beat.ended and self.silent_s(node) < SILENT_S

    def said_goodbye(self, node: int) -> bool:
        beat = self.beats.get(node)
        return beat is not None and bool(beat.ended)

    def somebody_is_still(self) -> bool:
        return any(beat.still and not beat.ended for beat in self.beats.values())

    def all_left(self) -> bool:
        """Every other node has said goodbye, or was found gone and that was looked into: nobody is left to wait for."""
        return all(node in self._left_behind or self._is_away(node) for node in range(self.count))

    def _is_away(self, node: int) -> bool:
        """It is this one, or has left the job in order, beyond doubt."""
        beat = self.beats.get(node)
        left = beat is not None and beat.ended not in ("", RESTARTED)
        return node == self.own.node or (left and self.knows(node))

    def _is_done(self, node: int) -> bool:
        beat = self.beats.get(node)
        return beat is not None and beat.done

    # Doors.

    def fallen_silent(self, minded: Iterable[int | None]) -> list[int]:
        return [node for node in minded if node is not None and node in self.hellos and self._fell_silent(node)]

    def _fell_silent(self, node: int) -> bool:
        return node != self.own.node and not self.said_goodbye(node) and self.silent_s(node) > SILENT_S

    def gone(self, silent: list[int]) -> bool:
        """Whether one of them has ended without a goodbye, and its ranks with it: its door refuses."""
        gone = {node for node, answer in self._knock_at(silent).items() if answer == "gone"}
        done = {node for node in gone if self._is_done(node)}
        self._left_behind |= done
        return bool(gone - done)

    def seen(self, answered: set[int]) -> tuple[NodeEvidence, ...]:
        """All nodes, where these have brought evidence."""
        nodes = sorted(self.hellos)
        # A goodbye without the seal is nobody's word: the door tells.
        doors = [n for n in nodes if n not in answered and not (self.said_goodbye(n) and self.knows(n))]
        found = self._knock_at(doors)
        self._left_behind |= {node for node, answer in found.items() if answer == "gone"}
        return tuple(self._seen(node, node in answered, found.get(node)) for node in nodes)

    def _seen(self, node: int, answered: bool, door: Answer | None) -> NodeEvidence:
        hello = self.hellos[node]
        left_in_order = self.said_goodbye(node) or self._is_done(node)
        state = "answered"
        if node == self.own.node:
            state = "cut-off" if link_is_down(self.own.address) else "answered"
        elif (self.said_goodbye(node) and self.knows(node)) or (door == "gone" and left_in_order):
            state = "ended"
        elif door is not None:
            state = "silent" if door == "alive" else door
        silent = None if answered else self.silent_s(node)
        knows = self.knows(node)
        return NodeEvidence(hello.host, hello.ranks, state, hello.pid, silent, self.own.host, knows, hello.address)

    def _knock_at(self, doors: list[int]) -> dict[int, Answer]:
        """At all in the same moment: a job may have lost many nodes at once."""
        found: dict[int, Answer] = {}

        def ask(node: int) -> None:
            found[node] = knock(self.hellos[node].address, self.hellos[node].port)

        knocking = [threading.Thread(target=ask, args=(node,), name="rankscope-knock", daemon=True) for node in doors]
        for thread in knocking:
            thread.start()
        for thread in knocking:
            thread.join()
        return found
