"""The launchers of a job on several machines: one speaks for all, the others send it what they see.

The node that holds the rendezvous store is the speaker. It calls for evidence, diagnoses, and rules; the others beat,
answer calls and follow rulings. Every node says a constant amount per beat and per look, whatever the number of nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from rankscope.addresses import link_is_down
from rankscope.door import Answer, Door, knock
from rankscope.evidence.model import Evidence, NodeEvidence
from rankscope.launch.events import Ruled, TellNodes
from rankscope.launch.nodes.channel import Channel, ChannelLost
from rankscope.launch.nodes.parcel import merge, pack, travelling, unpack
from rankscope.launch.nodes.words import Beat, Call, Hello, Ruling, encode, ruling

PERIOD_S = 0.5
SILENT_S = 4.0
"""A node whose beat has not come for so long is asked at its door."""
ANSWER_S = 8.0
"""How long a look waits for the next piece of evidence of nodes that beat."""
ANSWER_PER_NODE_S = 0.1
"""What a look may take in all grows with the number of nodes."""
RULING_S = 15.0
"""How long a node that has asked for a look waits for the verdict, where the nodes are few."""
_GOODBYE_S = 6.0
_BEATS = 128
"""Beats read at a time."""
_BATCH = 32
"""Parcels fetched at a time: one answer of the store has a time limit."""


class Exchange:
    """Of one attempt; runs in a thread of its own until `close`."""

    def __init__(
        self,
        channel: Channel,
        own: Hello,
        nodes: int,
        door: Door,
        collect: Callable[[str], Evidence],
        hand_over: Callable[[Ruled], None],
        note: Callable[[str], None],
    ) -> None:
        self.own = own
        self._channel = channel
        self._door = door
        self._collect = collect
        self._hand_over = hand_over
        self._note = note
        self._count = nodes
        self.hellos: dict[int, Hello] = {own.node: own}
        self._beats: dict[int, Beat] = {}
        self._heard: dict[int, float] = {}
        self._speaker: int | None = own.node if own.holds_store else None
        self._beat = Beat(0, time.time())
        self._still = False
        self._wants = 0
        self._numbers = 0
        self._failed = False
        self._ended = ""
        self._served: dict[int, int] = {}
        self._served_numbers: dict[int, int] = {}
        self._calls = 0
        self._rulings = 0
        self._clock_off: float | None = None
        self._introduced = False
        self._stop = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="rankscope-nodes", daemon=True)

    def start(self) -> None:
        """At once: the first word is said by the thread, which tries again where the store is slow to answer."""
        self._thread.start()

    @property
    def speaks(self) -> bool:
        return self._speaker == self.own.node

    @property
    def ruling_limit_s(self) -> float:
        return RULING_S + ANSWER_PER_NODE_S * self._count

    # What the other parts of this launcher say.

    def tell_still(self, still: bool) -> None:
        self._still = still

    def look_wanted(self) -> str | None:
        """The speaker's question: has another node asked for a look that was not taken yet?

        `failure`, `still` or `non-finite`.
        """
        if not self.speaks:
            return None
        wanting = [beat for node, beat in self._beats.items() if beat.wants > self._served.get(node, 0)]
        if any(beat.failed for beat in wanting):
            return "failure"
        if any(beat.numbers > self._served_numbers.get(node, 0) for node, beat in self._beats.items()):
            return "non-finite"
        return "still" if wanting else None

    def beating(self) -> set[int]:
        """The other nodes that have been heard."""
        return set(self._beats) - {self.own.node}

    def others_still(self) -> bool:
        return any(beat.still and not beat.ended for beat in self._beats.values())

    def gather(self, trigger: str) -> Evidence | None:
        """Evidence of all nodes; None on a node that does not speak: it has asked for a look, a ruling will come."""
        if self.speaks:
            with self._looking:
                return self._gather_all(trigger)
        if self._speaker_silent_s() < SILENT_S and self._channel.lost is None:
            self._failed = self._failed or trigger == "failure"
            if trigger == "non-finite":
                self._numbers += 1
            else:
                self._wants += 1
            return None
        return self.gather_alone(trigger)

    def gather_alone(self, trigger: str) -> Evidence:
        """What this node sees by itself, with what can be told of the others from here."""
        here = self._collect(trigger)
        return replace(here, nodes=self._seen_all({self.own.node}), speaker=self.speaks)

    def rule(self, told: TellNodes) -> None:
        """The speaker's verdict goes to all nodes."""
        if not self.speaks:
            return
        self._rulings += 1
        try:
            self._channel.set("ruling", encode(ruling(self._rulings, told)))
        except ChannelLost as error:
            self._note(f"the verdict did not reach the other nodes: {error}")

    def close(self, ended: str) -> None:
        """Says goodbye; the speaker stays until its last ruling was heard."""
        self._ended = ended
        if self.speaks and self._rulings:
            self._await_hearing()
        self._stop.set()
        self._thread.join(5.0)
        try:
            self._say_beat()
        except ChannelLost:
            return  # nobody is left to tell
        finally:
            self._door.close()

    def _await_hearing(self) -> None:
        deadline = time.monotonic() + _GOODBYE_S
        while time.monotonic() < deadline:
            living = [n for n in self.hellos if n != self.own.node and self._is_living(n)]
            try:
                heard = self._channel.read([f"heard/{node}" for node in living])
            except ChannelLost:
                return
            if all(value is not None and int(value) >= self._rulings for value in heard):
                return
            time.sleep(0.1)

    def _is_living(self, node: int) -> bool:
        beat = self._beats.get(node)
        return beat is not None and not beat.ended and self._silent_s(node) < SILENT_S

    # The thread.

    def _run(self) -> None:
        woke = time.monotonic()
        # The nodes of a large job do not all speak in the same moment.
        self._stop.wait(PERIOD_S * (self.own.node % 16) / 16)
        while not self._stop.is_set():
            now = time.monotonic()
            if now - woke > SILENT_S / 2:
                # We ourselves were away: what the others said meanwhile is heard only now.
                self._heard = dict.fromkeys(self._heard, now)
            woke = now
            try:
                self._turn()
            except ChannelLost:
                pass  # told by whoever needs the answer; the next turn tries again
            except Exception as error:  # noqa: BLE001  a fault of ours must not end the exchange; it is told at the end
                self._note(f"the exchange between nodes failed: {type(error).__name__}: {error}")
            self._stop.wait(PERIOD_S)

    def _introduce(self) -> None:
        self._channel.set(f"hello/{self.own.node}", encode(self.own))
        self._channel.append("hellos", f"{self.own.node},".encode())
        if self.speaks:
            self._channel.set("speaker", str(self.own.node).encode())
        self._introduced = True

    def _turn(self) -> None:
        if not self._introduced:
            self._introduce()
        self._say_beat()
        if self._speaker is None:
            self._find_speaker()
        if self.speaks:
            if len(self.hellos) < self._count:
                self._meet("hellos")
            self._hear_all()
        elif self._speaker in self.hellos:
            self._hear_speaker()

    def _say_beat(self) -> None:
        number = self._beat.number + 1
        self._beat = Beat(number, time.time(), self._still, self._wants, self._failed, self._ended, self._numbers)
        self._channel.set(f"beat/{self.own.node}", encode(self._beat))

    def _find_speaker(self) -> None:
        """The node that holds the store has said so. Where none does, the first speaks once it knows them all."""
        named = self._channel.read(["speaker"])[0]
        if named is not None:
            speaker = int(named)
            self._greet([speaker])
            self._speaker = speaker
        elif self.own.node == 0:
            self._meet("hellos")
            if len(self.hellos) == self._count and not any(hello.holds_store for hello in self.hellos.values()):
                self._speaker = 0
                self._channel.set("speaker", b"0")

    def _meet(self, key: str) -> None:
        self._greet([node for node in self._listed(key) if node not in self.hellos])

    def _listed(self, key: str) -> list[int]:
        named = self._channel.read([key])[0]
        return [] if named is None else [int(number) for number in named.decode().split(",") if number]

    def _greet(self, nodes: list[int]) -> None:
        for some in batches(nodes, _BATCH):
            for node, value in zip(some, self._channel.read([f"hello/{n}" for n in some]), strict=True):
                if value is not None:
                    self.hellos[node] = msgspec.msgpack.decode(value, type=Hello)
                    self._heard[node] = time.monotonic()

    def _hear_all(self) -> None:
        for some in batches([node for node in self.hellos if node != self.own.node], _BEATS):
            for node, value in zip(some, self._channel.read([f"beat/{n}" for n in some]), strict=True):
                if value is not None:
                    self._hear(node, msgspec.msgpack.decode(value, type=Beat))

    def _hear(self, node: int, beat: Beat) -> None:
        known = self._beats.get(node)
        if known is None or beat.number != known.number:
            self._heard[node] = time.monotonic()
        self._beats[node] = beat

    def _hear_speaker(self) -> None:
        assert self._speaker is not None
        call, ruled, beat = self._channel.read(["call", "ruling", f"beat/{self._speaker}"])
        if beat is not None:
            heard = msgspec.msgpack.decode(beat, type=Beat)
            self._hear(self._speaker, heard)
            # Words take time and never negative time: the smallest difference is nearest to the clocks' own.
            off = time.time() - heard.at
            self._clock_off = off if self._clock_off is None else min(self._clock_off, off)
        if call is not None:
            wanted = msgspec.msgpack.decode(call, type=Call)
            if wanted.number > self._calls:
                self._calls = wanted.number
                threading.Thread(target=self._answer, args=(wanted,), name="rankscope-answer", daemon=True).start()
        if ruled is not None:
            self._follow(msgspec.msgpack.decode(ruled, type=Ruling))

    def _follow(self, ruled: Ruling) -> None:
        if ruled.number > self._rulings:
            self._rulings = ruled.number
            assert self._speaker is not None
            self._hand_over(ruled.as_event(self.hellos[self._speaker].host))
            self._channel.set(f"heard/{self.own.node}", str(ruled.number).encode())

    def _answer(self, call: Call) -> None:
        try:
            parcel = pack(self._collect(call.trigger), self._clock_off or 0.0, travelling(self._count))
            self._channel.set(f"evidence/{call.number}/{self.own.node}", parcel)
            self._channel.append(f"answers/{call.number}", f"{self.own.node},".encode())
        except ChannelLost:
            return  # the speaker will find this node silent
        except Exception as error:  # noqa: BLE001  a fault of ours; the speaker finds this node silent
            self._note(f"the evidence of this node could not be sent: {type(error).__name__}: {error}")

    # A look at everything.

    def _gather_all(self, trigger: str) -> Evidence:
        self._calls += 1
        if trigger == "non-finite":
            self._served_numbers = {node: beat.numbers for node, beat in self._beats.items()}
        else:
            self._served = {node: beat.wants for node, beat in self._beats.items()}
        parts: dict[int, Evidence] = {}
        try:
            self._channel.set("call", encode(Call(self._calls, trigger)))
            here = self._collect(trigger)
            self._await_answers(parts)
        except ChannelLost as error:
            self._note(f"not all evidence of the other nodes came: {error}")
            here = self._collect(trigger)
        nodes = self._seen_all({*parts, self.own.node})
        return merge(here, [parts[node] for node in sorted(parts)], nodes)

    def _await_answers(self, parts: dict[int, Evidence]) -> None:
        """Fills `parts`. Waits as long as answers come, and not for nodes that have fallen silent."""
        missing = {node for node in self.hellos if node != self.own.node}
        begun = progress = time.monotonic()
        most = begun + ANSWER_S + ANSWER_PER_NODE_S * len(missing)
        while missing and time.monotonic() < min(most, progress + ANSWER_S):
            if all(self._silent_s(node) > SILENT_S or self._said_goodbye(node) for node in missing):
                return
            here_now = [node for node in self._listed(f"answers/{self._calls}") if node in missing]
            for some in batches(here_now, _BATCH):
                keys = [f"evidence/{self._calls}/{node}" for node in some]
                for node, value in zip(some, self._channel.read(keys), strict=True):
                    if value is not None:
                        parts[node] = unpack(value)
                        missing.discard(node)
                        progress = time.monotonic()
            if missing and not here_now:
                time.sleep(0.05)

    def _said_goodbye(self, node: int) -> bool:
        beat = self._beats.get(node)
        return beat is not None and bool(beat.ended)

    def _seen_all(self, answered: set[int]) -> tuple[NodeEvidence, ...]:
        """All doors are knocked at in the same moment: a job may have lost many nodes at once."""
        nodes = sorted(self.hellos)
        found: dict[int, Answer] = {}

        def ask(node: int) -> None:
            found[node] = knock(self.hellos[node].address, self.hellos[node].port)

        doors = [node for node in nodes if node not in answered and not self._said_goodbye(node)]
        knocking = [threading.Thread(target=ask, args=(node,), name="rankscope-knock", daemon=True) for node in doors]
        for thread in knocking:
            thread.start()
        for thread in knocking:
            thread.join()
        return tuple(self._seen(node, node in answered, found.get(node)) for node in nodes)

    def _seen(self, node: int, answered: bool, door: Answer | None) -> NodeEvidence:
        hello = self.hellos[node]
        state = "answered"
        if node == self.own.node:
            state = "cut-off" if link_is_down(self.own.address) else "answered"
        elif self._said_goodbye(node):
            state = "ended"
        elif door is not None:
            state = "silent" if door == "alive" else door
        silent = None if answered else self._silent_s(node)
        return NodeEvidence(hello.host, hello.ranks, state, hello.pid, silent, self.own.host)

    def _silent_s(self, node: int) -> float:
        heard = self._heard.get(node)
        return 0.0 if heard is None else time.monotonic() - heard

    def _speaker_silent_s(self) -> float:
        return 0.0 if self._speaker is None else self._silent_s(self._speaker)


def batches(nodes: list[int], size: int) -> list[list[int]]:
    return [nodes[start : start + size] for start in range(0, len(nodes), size)]
