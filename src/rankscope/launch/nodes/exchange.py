"""The launchers of a job on several machines: one speaks for all, the others send it what they see.

The node that holds the rendezvous store is the speaker. It calls for evidence, diagnoses, and rules; the others beat,
answer calls and follow rulings. Every node says a constant amount per beat and per look, whatever the number of nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from rankscope.addresses import link_is_down
from rankscope.door import Answer, Door, knock
from rankscope.evidence.model import Evidence, NodeEvidence
from rankscope.launch.events import Ruled, StoppedElsewhere, TellNodes
from rankscope.launch.nodes.bounds import TooMuch, most_unpacked
from rankscope.launch.nodes.channel import Channel, ChannelLost
from rankscope.launch.nodes.parcel import merge, pack, travelling, unpack
from rankscope.launch.nodes.parts import Library
from rankscope.launch.nodes.seal import Word
from rankscope.launch.nodes.words import Beat, Call, Hello, Nonsense, Ruling, W, decode, encode, ruling, sane_hello

T = TypeVar("T")
PERIOD_S = 0.5
SILENT_S = 4.0
"""A node whose beat has not come for so long is asked at its door."""
ANSWER_S = 8.0
"""How long a look waits for the next piece of evidence of nodes that beat."""
ANSWER_PER_NODE_S = 0.1
"""What a look may take in all grows with the number of nodes."""
RULING_S = 15.0
"""How long a node that has asked for a look waits for the verdict, where the nodes are few."""
RESTARTED = "restarted"
"""How a launcher ended that has begun another attempt."""
_HURRY_S = 0.1
"""How long a word waits that cannot wait."""
_GOODBYE_S = 6.0
_LEAVE_S = 5.0
_LEAVE_LOST_S = 2.0
"""How long the last word may take, and where the store had fallen silent before it."""
_KNOCK_AGAIN_S = 3.0
"""Between two knocks at the doors of nodes that have fallen silent."""
_BEATS = 128
"""Beats read at a time."""
_TRIGGERS = frozenset({"failure", "still", "non-finite", "interrupt"})
_PARTS = 64
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
        hand_over: Callable[[Ruled | StoppedElsewhere], None],
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
        self._verified: set[int] = set()
        """Nodes that have the job's key, as we have."""
        self._speaker: int | None = own.node if own.holds_store else None
        self._beat = Beat(0, time.time())
        self._still = False
        self._done = False
        self._wants = 0
        self._numbers = 0
        self._failed = False
        self._ended = ""
        self._signal = 0
        self._signal_at = 0.0
        self._served: dict[int, int] = {}
        self._served_numbers: dict[int, int] = {}
        self._calls = 0
        self._rulings = 0
        self._clock_off: float | None = None
        self._introduced = False
        self._answered_at = time.monotonic()
        """When the store was there last."""
        self._knock_due = 0.0
        self._found_gone = False
        self._left_behind: set[int] = set()
        """Nodes that are gone, and were looked for."""
        self._stop = threading.Event()
        self._looking = threading.Lock()
        self._answers = threading.Semaphore(2)
        self._left: set[str] = set()
        """The parts of our evidence that are on the store."""
        self._library = Library()
        self._thread = threading.Thread(target=self._run, name="rankscope-nodes", daemon=True)

    def start(self) -> None:
        """At once: the first word is said by the thread, which tries again where the store is slow to answer."""
        self._thread.start()

    @property
    def speaks(self) -> bool:
        return self._speaker == self.own.node

    # What the other parts of this launcher say.

    def tell_still(self, still: bool) -> None:
        self._still = still

    def tell_done(self, done: bool) -> None:
        """All ranks of this node have ended well."""
        self._done = done

    def tell_signal(self, number: int) -> None:
        """It came to this launcher, and the ranks are stopped. Called by a signal handler: it waits for nobody, and the
        next beat says it."""
        if not self._done and not self._signal:
            self._signal_at = time.time() - (self._clock_off or 0.0)
            self._signal = number

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

    def await_ruling(self, came: threading.Event) -> bool:
        """Whether the verdict of the node that speaks came in time. Nobody waits for one that is known to be gone."""
        deadline = time.monotonic() + RULING_S + ANSWER_PER_NODE_S * self._count
        while not came.wait(min(PERIOD_S, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline or self._speaker_is_gone():
                return came.is_set()
        return True

    def _speaker_is_gone(self) -> bool:
        speaker = None if self._speaker is None else self.hellos.get(self._speaker)
        if speaker is None or (self._channel.lost is None and self._speaker_silent_s() < SILENT_S):
            return False
        return knock(speaker.address, speaker.port, PERIOD_S) == "gone"

    def somebody_is_gone(self) -> bool:
        """A launcher has ended without a goodbye, and its ranks with it: its door refuses. To be asked again and again,
        by one thread; the speaker minds all nodes, the others mind the speaker."""
        if time.monotonic() >= self._knock_due:
            minded = self.hellos if self.speaks else {self._speaker}
            silent = [node for node in minded if node in self.hellos and self._fell_silent(node)]
            gone = {node for node, answer in self._knock_at(silent).items() if answer == "gone"}
            done = {node for node in gone if self._is_done(node)}
            self._left_behind |= done
            self._found_gone = bool(gone - done) or self._store_is_gone()
            self._knock_due = time.monotonic() + _KNOCK_AGAIN_S if silent else 0.0
        return self._found_gone

    def _fell_silent(self, node: int) -> bool:
        return node != self.own.node and not self._said_goodbye(node) and self._silent_s(node) > SILENT_S

    def _store_is_gone(self) -> bool:
        """Of a node that was never met nothing is known but that it holds the store: the launcher itself serves it."""
        if self._speaker is not None or self._channel.lost is None or self._channel.store_at is None:
            return False
        lost_for = time.monotonic() - self._answered_at
        return lost_for > SILENT_S and knock(*self._channel.store_at, PERIOD_S) == "gone"

    def all_left(self) -> bool:
        """Every other node has said goodbye, or was found gone and that was looked into: nobody is left to wait for."""
        return all(node in self._left_behind or self._is_away(node) for node in range(self._count))

    def _is_away(self, node: int) -> bool:
        """It is this one, or has left the job in order, beyond doubt."""
        beat = self._beats.get(node)
        left = beat is not None and beat.ended not in ("", RESTARTED)
        return node == self.own.node or (left and self._knows(node))

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
        nodes = (*self._seen_all({self.own.node}), *self._never_met(here))
        return replace(here, nodes=nodes, speaker=self.speaks)

    def _never_met(self, here: Evidence) -> tuple[NodeEvidence, ...]:
        """The node with the store, where it is gone and its first word had not come."""
        if not self._store_is_gone():
            return ()
        assert self._channel.store_at is not None
        address = self._channel.store_at[0]
        # Of two nodes it has all ranks that are not here; of more, who has which is not known.
        ranks = tuple(sorted(set(range(here.world_size)) - set(self.own.ranks))) if self._count == 2 else ()
        silent_s = time.monotonic() - self._answered_at
        return (NodeEvidence(address, ranks, "gone", None, silent_s, self.own.host, True, address),)

    def rule(self, told: TellNodes) -> None:
        """The speaker's verdict goes to all nodes."""
        if not self.speaks:
            return
        self._rulings += 1
        try:
            self._channel.say("ruling", encode(ruling(self._rulings, told)))
        except ChannelLost as error:
            self._note(f"the verdict did not reach the other nodes: {error}")

    def close(self, ended: str, signal: int | None = None) -> None:
        """Says goodbye, and which signal it was that stopped this launcher; the speaker stays until its last ruling was
        heard."""
        if signal is not None:
            self.tell_signal(signal)
        if self._done:
            self._signal = 0
        self._ended = ended
        if self.speaks and self._rulings:
            self._await_hearing()
        self._stop.set()
        leaving = threading.Thread(target=self._leave, name="rankscope-goodbye", daemon=True)
        leaving.start()
        leaving.join(_LEAVE_S if self._channel.lost is None else _LEAVE_LOST_S)
        self._door.close()

    def _leave(self) -> None:
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._say_beat()
        except ChannelLost:
            return  # nobody is left to tell

    def _await_hearing(self) -> None:
        deadline = time.monotonic() + _GOODBYE_S
        while time.monotonic() < deadline:
            living = [n for n in self.hellos if n != self.own.node and self._is_living(n)]
            try:
                heard = self._channel.read([f"heard/{node}" for node in living])
            except ChannelLost:
                return
            if all(value is not None and value.isdigit() and int(value[:9]) >= self._rulings for value in heard):
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
                self._answered_at = time.monotonic()
            except ChannelLost:
                pass  # told by whoever needs the answer; the next turn tries again
            except Exception as error:  # noqa: BLE001  a fault of ours must not end the exchange; it is told at the end
                self._note(f"the exchange between nodes failed: {type(error).__name__}: {error}")
            self._rest()

    def _rest(self) -> None:
        """Until the next turn, unless there is something that cannot wait."""
        until = time.monotonic() + PERIOD_S
        while self._signal == self._beat.signal and (left := until - time.monotonic()) > 0:
            if self._stop.wait(min(left, _HURRY_S)):
                return

    def introduce(self, channel: Channel) -> None:
        """The first word. Raises ChannelLost; then the thread says it."""
        channel.say(f"hello/{self.own.node}", encode(self.own))
        channel.append("hellos", f"{self.own.node},".encode())
        if self.speaks:
            channel.say("speaker", str(self.own.node).encode())
        self._introduced = True

    def _turn(self) -> None:
        if not self._introduced:
            self.introduce(self._channel)
        self._say_beat()
        if self._speaker is None or not self._done_with({self._speaker}):
            self._find_speaker()
        if self.speaks:
            if len(self.hellos) < self._count or not self._done_with(set(self.hellos)):
                self._meet("hellos")
            self._hear_all()
        elif self._speaker in self.hellos:
            self._hear_speaker()

    def _say_beat(self) -> None:
        number = self._beat.number + 1
        self._beat = Beat(
            number,
            time.time(),
            self._still,
            self._wants,
            self._failed,
            self._ended,
            self._numbers,
            self._done,
            self._signal,
            self._signal_at,
        )
        self._channel.say(f"beat/{self.own.node}", encode(self._beat))

    def _find_speaker(self) -> None:
        """The node that holds the store has said so. Where none does, the first speaks once it knows them all."""
        named = self._channel.hear(["speaker"])[0]
        if named is not None:
            speaker = int(named.content) if named.content.isdigit() else -1
            if 0 <= speaker < self._count:
                self._greet([speaker])
                self._speaker = speaker if speaker in self.hellos else None
        elif self.own.node == 0:
            self._meet("hellos")
            if len(self.hellos) == self._count and not any(hello.holds_store for hello in self.hellos.values()):
                self._speaker = 0
                self._channel.say("speaker", b"0")

    def _meet(self, key: str) -> None:
        self._greet([node for node in self._listed(key) if node not in self.hellos or not self._done_with({node})])

    def _done_with(self, nodes: set[int]) -> bool:
        """No better hello can come from them: they have the key, or we have none to know them by."""
        return not self._channel.has_key or nodes <= {*self._verified, self.own.node}

    def _listed(self, key: str) -> list[int]:
        named = self._channel.read([key])[0]
        if named is None:
            return []
        # Everyone may add to the list, and adds itself once.
        numbers = named[: 16 * self._count].split(b",")
        return sorted({int(number) for number in numbers if number.isdigit() and int(number) < self._count})

    def _greet(self, nodes: list[int]) -> None:
        for some in batches(nodes, _BATCH):
            for node, word in zip(some, self._channel.hear([f"hello/{n}" for n in some]), strict=True):
                if word is not None:
                    self._meet_one(node, word)

    def _meet_one(self, node: int, word: Word) -> None:
        if node in self.hellos and not word.verified:
            return
        hello = self._understood(word, Hello)
        if hello is None or not sane_hello(hello, node, self._count):
            return
        rivals = [n for n, known in self.hellos.items() if n != node and set(known.ranks).intersection(hello.ranks)]
        if any(not word.verified or self._knows(rival) for rival in rivals):
            return  # two nodes cannot have the same rank; the seal counts more than who came first
        for rival in rivals:
            del self.hellos[rival]
        self.hellos[node] = hello
        self._heard[node] = time.monotonic()
        if word.verified:
            self._verified.add(node)

    def _trusted(self, node: int, word: Word | None) -> bool:
        """A node that has the key says nothing without its seal: then somebody else said it."""
        return word is not None and (word.verified or node not in self._verified)

    def _understood(self, word: Word, kind: type[W]) -> W | None:
        try:
            return decode(word.content, kind)
        except Nonsense as error:
            self._note(f"a word on the rendezvous store could not be understood: {error}")
            return None

    def _hear_all(self) -> None:
        for some in batches([node for node in self.hellos if node != self.own.node], _BEATS):
            for node, word in zip(some, self._channel.hear([f"beat/{n}" for n in some]), strict=True):
                if word is not None and self._trusted(node, word) and (beat := self._understood(word, Beat)):
                    self._hear(node, beat)

    def _hear(self, node: int, beat: Beat) -> None:
        known = self._beats.get(node)
        if known is None or beat.number != known.number:
            self._heard[node] = time.monotonic()
        self._beats[node] = beat
        if beat.signal and (known is None or not known.signal) and self.speaks and self._knows(node):
            self._hand_over(StoppedElsewhere(self.hellos[node].host, beat.signal, beat.signal_at))

    def _hear_speaker(self) -> None:
        assert self._speaker is not None
        said = self._channel.hear(["call", "ruling", f"beat/{self._speaker}"])
        call, ruled, beat = [word if self._trusted(self._speaker, word) else None for word in said]
        if beat is not None and (heard := self._understood(beat, Beat)) is not None:
            self._hear(self._speaker, heard)
            # Words take time and never negative time: the smallest difference is nearest to the clocks' own.
            off = time.time() - heard.at
            self._clock_off = off if self._clock_off is None else min(self._clock_off, off)
        if call is not None and (wanted := self._understood(call, Call)) is not None and wanted.number > self._calls:
            self._calls = wanted.number
            # A speaker asks again only where an answer came too late: there is no need for a crowd of them.
            if wanted.trigger in _TRIGGERS and self._answers.acquire(blocking=False):
                threading.Thread(target=self._answer, args=(wanted,), name="rankscope-answer", daemon=True).start()
        if ruled is not None and (ruling_ := self._understood(ruled, Ruling)) is not None:
            self._follow(ruling_, verified=ruled.verified)

    def _follow(self, ruled: Ruling, *, verified: bool) -> None:
        if ruled.number > self._rulings:
            self._rulings = ruled.number
            assert self._speaker is not None
            try:
                event = ruled.as_event(self.hellos[self._speaker].host, verified=verified)
            except Nonsense as error:
                self._note(f"a verdict on the rendezvous store could not be understood: {error}")
                return
            self._hand_over(event)
            self._channel.set(f"heard/{self.own.node}", str(ruled.number).encode())

    def _answer(self, call: Call) -> None:
        try:
            packed = pack(self._collect(call.trigger), self._clock_off or 0.0, travelling(self._count))
            self._leave_parts(packed.parts)
            self._channel.say(f"evidence/{call.number}/{self.own.node}", packed.data)
            self._channel.append(f"answers/{call.number}", f"{self.own.node},".encode())
        except ChannelLost:
            return  # the speaker will find this node silent
        except Exception as error:  # noqa: BLE001  a fault of ours; the speaker finds this node silent
            self._note(f"the evidence of this node could not be sent: {type(error).__name__}: {error}")
        finally:
            self._answers.release()

    def _leave_parts(self, parts: dict[str, bytes]) -> None:
        """Before the parcel that names them: whoever reads that finds them all."""
        new = [name for name in parts if name not in self._left]
        for some in batches(new, _PARTS):
            self._channel.set_missing({f"part/{name}": parts[name] for name in some})
        self._left = set(parts)  # of what is not used any more somebody else may be the next to need it

    # A look at everything.

    def _gather_all(self, trigger: str) -> Evidence:
        self._calls += 1
        self._library.trim()
        if trigger == "non-finite":
            self._served_numbers = {node: beat.numbers for node, beat in self._beats.items()}
        else:
            self._served = {node: beat.wants for node, beat in self._beats.items()}
        parts: dict[int, Evidence] = {}
        try:
            self._channel.say("call", encode(Call(self._calls, trigger)))
            here = self._collect(trigger)
            self._await_answers(parts)
            self._hear_all()  # what was said meanwhile: a signal may have been the reason
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
                for node, word in zip(some, self._channel.hear(keys), strict=True):
                    if word is None or not self._trusted(node, word):
                        continue
                    missing.discard(node)
                    progress = time.monotonic()
                    try:
                        parts[node] = self._opened(word.content, self.hellos[node].ranks)
                    except TooMuch as error:
                        self._note(f"the evidence of {self.hellos[node].host} was refused: {error}")
            if missing and not here_now:
                time.sleep(0.05)

    def _opened(self, data: bytes, ranks: tuple[int, ...]) -> Evidence:
        """With its parts, of which those that are known are not fetched again. Raises TooMuch."""
        parcel = unpack(data, ranks)
        left = most_unpacked(len(ranks))
        for some in batches(list(self._library.lacks(parcel).items()), _PARTS):
            brought = self._channel.read([f"part/{name}" for name, _ in some])
            for (name, kind), part in zip(some, brought, strict=True):
                if part is not None:
                    left -= self._library.add(name, kind, part, len(ranks))
                if left < 0:
                    raise TooMuch(f"parts of more than {most_unpacked(len(ranks)) >> 20} MB")
        return self._library.open(parcel)

    def _said_goodbye(self, node: int) -> bool:
        beat = self._beats.get(node)
        return beat is not None and bool(beat.ended)

    def _is_done(self, node: int) -> bool:
        beat = self._beats.get(node)
        return beat is not None and beat.done

    def _left_in_order(self, node: int) -> bool:
        return self._said_goodbye(node) or self._is_done(node)

    def _seen_all(self, answered: set[int]) -> tuple[NodeEvidence, ...]:
        nodes = sorted(self.hellos)
        # A goodbye without the seal is nobody's word: the door tells.
        doors = [n for n in nodes if n not in answered and not (self._said_goodbye(n) and self._knows(n))]
        found = self._knock_at(doors)
        self._left_behind |= {node for node, answer in found.items() if answer == "gone"}
        return tuple(self._seen(node, node in answered, found.get(node)) for node in nodes)

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

    def _seen(self, node: int, answered: bool, door: Answer | None) -> NodeEvidence:
        hello = self.hellos[node]
        state = "answered"
        if node == self.own.node:
            state = "cut-off" if link_is_down(self.own.address) else "answered"
        elif (self._said_goodbye(node) and self._knows(node)) or (door == "gone" and self._left_in_order(node)):
            state = "ended"
        elif door is not None:
            state = "silent" if door == "alive" else door
        silent = None if answered else self._silent_s(node)
        knows = self._knows(node)
        return NodeEvidence(hello.host, hello.ranks, state, hello.pid, silent, self.own.host, knows, hello.address)

    def _knows(self, node: int) -> bool:
        """Whether it is the job's own node beyond doubt."""
        return node == self.own.node or node in self._verified

    def _silent_s(self, node: int) -> float:
        heard = self._heard.get(node)
        return 0.0 if heard is None else time.monotonic() - heard

    def _speaker_silent_s(self) -> float:
        return 0.0 if self._speaker is None else self._silent_s(self._speaker)


def batches(items: list[T], size: int) -> list[list[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
