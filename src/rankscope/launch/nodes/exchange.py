"""The launchers of a job on several machines: one speaks for all, the others send it what they see.

The node that holds the rendezvous store is the speaker. It calls for evidence, diagnoses, and rules; the others beat,
answer calls and follow rulings. Every node says a constant amount per beat and per look, whatever the number of nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from rankscope.door import Door, knock
from rankscope.evidence.model import Evidence, NodeEvidence
from rankscope.launch.events import Ruled, StoppedElsewhere, TellNodes
from rankscope.launch.nodes.channel import BATCH, Channel, ChannelLost, batches
from rankscope.launch.nodes.looks import ANSWER_PER_NODE_S, Looks
from rankscope.launch.nodes.roster import SILENT_S, Roster
from rankscope.launch.nodes.vouching import Vouching
from rankscope.launch.nodes.words import Beat, Call, Hello, Nonsense, Ruling, encode, ruling

PERIOD_S = 0.5
RULING_S = 15.0
"""How long a node that has asked for a look waits for the verdict, where the nodes are few."""
_HURRY_S = 0.1
"""How long a word waits that cannot wait."""
_GOODBYE_S = 6.0
_LEAVE_S = 5.0
_LEAVE_LOST_S = 2.0
"""How long the last word may take, and where the store had fallen silent before it."""
_MEETING_S = 5.0
"""How long after the start the nodes may need to know each other; less than the last ruling waits to be heard."""
_KNOCK_AGAIN_S = 3.0
"""Between two knocks at the doors of nodes that have fallen silent."""
_BEATS = 128
"""Beats read at a time."""


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
        self.roster = Roster(own, nodes, note, only_sealed=channel.only_sealed)
        self._vouching = Vouching(channel, own.node, nodes, note)
        self.roster.vouched = self._vouching.vouched
        self._looks = Looks(channel, self.roster, collect, note)
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
        self._rulings = 0
        """Those that were said."""
        self._followed = {True: 0, False: 0}
        """Those that were heard, verified and not: nobody's word keeps one of the job's own from being heard."""
        self._told_stopped: set[int] = set()
        self._clock_off: float | None = None
        self._introduced = False
        self._begun = self._answered_at = time.monotonic()
        """When the store was there last."""
        self._knock_due = 0.0
        self._found_gone = False
        self._stop = threading.Event()
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
        beats = self.roster.beats
        wanting = [beat for node, beat in beats.items() if beat.wants > self._served.get(node, 0)]
        if any(beat.failed for beat in wanting):
            return "failure"
        if any(beat.numbers > self._served_numbers.get(node, 0) for node, beat in beats.items()):
            return "non-finite"
        return "still" if wanting else None

    def beating(self) -> set[int]:
        """The other nodes that have been heard."""
        return set(self.roster.beats) - {self.own.node}

    def await_ruling(self, came: threading.Event) -> bool:
        """Whether the verdict of the node that speaks came in time. Nobody waits for one that is known to be gone."""
        deadline = time.monotonic() + RULING_S + ANSWER_PER_NODE_S * self._count
        while not came.wait(min(PERIOD_S, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline or self._speaker_is_gone():
                return came.is_set()
        return True

    def _speaker_is_gone(self) -> bool:
        speaker = None if self._speaker is None else self.roster.hellos.get(self._speaker)
        if speaker is None or (self._channel.lost is None and self._speaker_silent_s() < SILENT_S):
            return False
        return knock(speaker.address, speaker.port, PERIOD_S) == "gone"

    def somebody_is_gone(self) -> bool:
        """A launcher has ended without a goodbye, and its ranks with it: its door refuses. To be asked again and again,
        by one thread; the speaker minds all nodes, the others mind the speaker."""
        if time.monotonic() >= self._knock_due:
            silent = self.roster.fallen_silent(self.roster.hellos if self.speaks else [self._speaker])
            self._found_gone = self.roster.gone(silent) or self._store_is_gone()
            self._knock_due = time.monotonic() + _KNOCK_AGAIN_S if silent else 0.0
        return self._found_gone

    def _store_is_gone(self) -> bool:
        """Of a node that was never met nothing is known but that it holds the store: the launcher itself serves it."""
        if self._speaker is not None or self._channel.lost is None or self._channel.store_at is None:
            return False
        lost_for = time.monotonic() - self._answered_at
        return lost_for > SILENT_S and knock(*self._channel.store_at, PERIOD_S) == "gone"

    def all_left(self) -> bool:
        """Nobody is left to wait for."""
        return self.roster.all_left()

    def others_still(self) -> bool:
        return self.roster.somebody_is_still()

    def gather(self, trigger: str) -> Evidence | None:
        """Evidence of all nodes; None on a node that does not speak: it has asked for a look, a ruling will come."""
        if self.speaks:
            while self._may_yet_be_vouched() and not self._stop.wait(_HURRY_S):
                pass
            if trigger == "non-finite":
                self._served_numbers = {node: beat.numbers for node, beat in self.roster.beats.items()}
            else:
                self._served = {node: beat.wants for node, beat in self.roster.beats.items()}
            return self._looks.gather(trigger, self._hear_all)
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
        nodes = (*self.roster.seen({self.own.node}), *self._never_met(here))
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

    def leave_attempt(self) -> None:
        """This launcher goes on to the next one: nobody is let into this one any more."""
        self._vouching.leave()

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
            living = [node for node in self.roster.others() if self.roster.is_living(node)]
            try:
                heard = self._channel.read([f"heard/{node}" for node in living])
            except ChannelLost:
                return
            if all(value is not None and value.isdigit() and int(value[:9]) >= self._rulings for value in heard):
                return
            time.sleep(0.1)

    # The thread.

    def _run(self) -> None:
        woke = time.monotonic()
        # The nodes of a large job do not all speak in the same moment.
        self._stop.wait(PERIOD_S * (self.own.node % 16) / 16)
        while not self._stop.is_set():
            now = time.monotonic()
            if now - woke > SILENT_S / 2:
                self.roster.was_away()
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
        while not self._stop.wait(_HURRY_S) and time.monotonic() < until:
            if self._signal != self._beat.signal:
                return

    def introduce(self, channel: Channel) -> None:
        """The first word. Raises ChannelLost; then the thread says it."""
        channel.say(f"hello/{self.own.node}", encode(self.own))
        channel.append("hellos", f",{self.own.node},".encode())
        self._vouching.ask(channel)
        if self.speaks:
            channel.say("speaker", str(self.own.node).encode())
        self._introduced = True

    def _turn(self) -> None:
        if not self._introduced:
            self.introduce(self._channel)
        self._say_beat()
        self._vouching.listen()
        self.roster.vouched = self._vouching.vouched
        if self._channel.only_sealed and not self.roster.vouched:
            return  # there is nobody yet who is known to be of this attempt
        if self._speaker is None or not self._done_with({self._speaker}):
            self._find_speaker()
        if self.speaks:
            hellos = self.roster.hellos
            if len(hellos) < self._count or not self._done_with(set(hellos)):
                self._meet("hellos")
            self._hear_all()
        elif self._speaker in self.roster.hellos:
            self._hear_speaker()
        self._vouching.answer()

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
        content = b"" if named is None else named.content[:9]
        speaker = int(content) if content.isdigit() else -1
        if 0 <= speaker < self._count:
            self._greet([speaker])
            self._speaker = speaker if speaker in self.roster.hellos else None
        elif named is not None or self.own.node == 0:
            self._meet("hellos")
            hellos = self.roster.hellos
            holders = [node for node, hello in sorted(hellos.items()) if hello.holds_store]
            if holders:
                self._speaker = holders[0]  # its own first word says so, whoever has overwritten the name
            elif len(hellos) == self._count and self.own.node == 0:
                self._speaker = 0
                self._channel.say("speaker", b"0")

    def _meet(self, key: str) -> None:
        listed, hellos = self._channel.listed(key, self._count), self.roster.hellos
        self._greet([node for node in listed if node not in hellos or not self._done_with({node})])

    def _done_with(self, nodes: set[int]) -> bool:
        """No better hello can come from them: they have the key, or we have none to know them by."""
        return not self._channel.has_key or nodes <= {*self.roster.verified, self.own.node}

    def _greet(self, nodes: list[int]) -> None:
        for some in batches(nodes, BATCH):
            for node, word in zip(some, self._channel.hear([f"hello/{n}" for n in some]), strict=True):
                if word is not None:
                    self.roster.meet(node, word)

    def _hear_all(self) -> None:
        for some in batches(self.roster.others(), _BEATS):
            for node, word in zip(some, self._channel.hear([f"beat/{n}" for n in some]), strict=True):
                if word is None or not self.roster.trusted(node, word):
                    continue
                if (beat := self.roster.understood(word, Beat)) is not None:
                    self._hear(node, beat)

    def _hear(self, node: int, beat: Beat) -> None:
        self.roster.hear(node, beat)
        if beat.signal and node not in self._told_stopped and self.speaks and self.roster.knows(node):
            self._told_stopped.add(node)
            self._hand_over(StoppedElsewhere(self.roster.hellos[node].host, beat.signal, beat.signal_at))

    def _hear_speaker(self) -> None:
        assert self._speaker is not None
        roster = self.roster
        said = self._channel.hear(["call", "ruling", f"beat/{self._speaker}"])
        call, ruled, beat = [word if roster.trusted(self._speaker, word) else None for word in said]
        if beat is not None and (heard := roster.understood(beat, Beat)) is not None:
            self._hear(self._speaker, heard)
            # Words take time and never negative time: the smallest difference is nearest to the clocks' own.
            off = time.time() - heard.at
            self._clock_off = off if self._clock_off is None else min(self._clock_off, off)
        if call is not None and (wanted := roster.understood(call, Call)) is not None:
            self._looks.called(wanted, self._clock_off or 0.0)
        if ruled is not None and (ruling_ := roster.understood(ruled, Ruling)) is not None:
            self._follow(ruling_, verified=ruled.verified and roster.vouched)

    def _may_yet_be_vouched(self) -> bool:
        """What comes is not verified yet, and may be a moment later."""
        unknown = self._channel.has_key and not self.roster.vouched and not self._vouching.refused
        return unknown and time.monotonic() < self._begun + _MEETING_S

    def _follow(self, ruled: Ruling, *, verified: bool) -> None:
        if ruled.number > self._followed[verified] and not self._may_yet_be_vouched():
            self._followed[verified] = ruled.number
            assert self._speaker is not None
            try:
                event = ruled.as_event(self.roster.hellos[self._speaker].host, verified=verified)
            except Nonsense as error:
                self._note(f"a verdict on the rendezvous store could not be understood: {error}")
                return
            self._hand_over(event)
            self._channel.set(f"heard/{self.own.node}", str(ruled.number).encode())

    def _speaker_silent_s(self) -> float:
        return 0.0 if self._speaker is None else self.roster.silent_s(self._speaker)
