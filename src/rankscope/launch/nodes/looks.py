"""A look at all nodes of a job: the one that speaks calls for evidence, the others answer."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from rankscope.evidence.model import Evidence
from rankscope.launch.nodes.bounds import TooMuch, most_unpacked
from rankscope.launch.nodes.channel import BATCH, Channel, ChannelLost, batches
from rankscope.launch.nodes.parcel import Packed, merge, pack, travelling, unpack
from rankscope.launch.nodes.parts import Library
from rankscope.launch.nodes.roster import SILENT_S, Roster
from rankscope.launch.nodes.words import Call, encode

ANSWER_S = 8.0
"""How long a look waits for the next piece of evidence of nodes that beat."""
ANSWER_PER_NODE_S = 0.1
"""What a look may take in all grows with the number of nodes."""
_TRIGGERS = frozenset({"failure", "still", "non-finite", "interrupt"})
_PARTS = 64
_SENDINGS = 3


class Looks:
    """`collect` brings the evidence of this node."""

    def __init__(
        self, channel: Channel, roster: Roster, collect: Callable[[str], Evidence], note: Callable[[str], None]
    ) -> None:
        self._channel = channel
        self._roster = roster
        self._collect = collect
        self._note = note
        self._calls = 0
        self._looking = threading.Lock()
        self._answers = threading.Semaphore(2)
        self._left: set[str] = set()
        """The parts of our evidence that are on the store."""
        self._library = Library()

    # The node that speaks.

    def gather(self, trigger: str, hear_all: Callable[[], None]) -> Evidence:
        """One at a time. `hear_all` hears what the others said while it was taken: it may have been the reason."""
        with self._looking:
            self._calls += 1
            self._library.trim()
            parts: dict[int, Evidence] = {}
            try:
                self._channel.say("call", encode(Call(self._calls, trigger)))
                here = self._collect(trigger)
                self._await_answers(parts)
                hear_all()
            except ChannelLost as error:
                self._note(f"not all evidence of the other nodes came: {error}")
                here = self._collect(trigger)
            nodes = self._roster.seen({*parts, self._roster.own.node})
            return merge(here, [parts[node] for node in sorted(parts)], nodes)

    def _await_answers(self, parts: dict[int, Evidence]) -> None:
        """Fills `parts`. Waits as long as answers come, and not for nodes that have fallen silent."""
        roster = self._roster
        missing = set(roster.others())
        begun = progress = time.monotonic()
        most = begun + ANSWER_S + ANSWER_PER_NODE_S * len(missing)
        while missing and time.monotonic() < min(most, progress + ANSWER_S):
            if all(roster.silent_s(node) > SILENT_S or roster.said_goodbye(node) for node in missing):
                return
            listed = self._channel.listed(f"answers/{self._calls}", roster.count)
            here_now = [node for node in listed if node in missing]
            for some in batches(here_now, BATCH):
                keys = [f"evidence/{self._calls}/{node}" for node in some]
                for node, word in zip(some, self._channel.hear(keys), strict=True):
                    if word is None or not roster.trusted(node, word):
                        continue
                    missing.discard(node)
                    progress = time.monotonic()
                    try:
                        parts[node] = self._opened(word.content, roster.hellos[node].ranks)
                    except TooMuch as error:
                        self._note(f"the evidence of {roster.hellos[node].host} was refused: {error}")
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

    # The others.

    def called(self, call: Call, clock_off: float) -> None:
        """The speaker has called: answered once, in a thread of its own. `clock_off`: our clock against its."""
        if call.number <= self._calls:
            return
        self._calls = call.number
        # A speaker asks again only where an answer came too late: there is no need for a crowd of them.
        if call.trigger in _TRIGGERS and self._answers.acquire(blocking=False):
            name = "rankscope-answer"
            threading.Thread(target=self._answer, args=(call, clock_off), name=name, daemon=True).start()

    def _answer(self, call: Call, clock_off: float) -> None:
        try:
            packed = pack(self._collect(call.trigger), clock_off, travelling(self._roster.count))
            self._send(packed, call.number)
        except Exception as error:  # noqa: BLE001  a fault of ours; the speaker finds this node silent
            self._note(f"the evidence of this node could not be sent: {type(error).__name__}: {error}")
        finally:
            self._answers.release()

    def _send(self, packed: Packed, number: int) -> None:
        """Once more where the store, with a crowd around it, took too long; then the speaker finds this node silent."""
        own = self._roster.own.node
        for _ in range(_SENDINGS):
            if number < self._calls:
                return  # the speaker has asked anew
            with contextlib.suppress(ChannelLost):
                self._leave_parts(packed.parts)
                self._channel.say(f"evidence/{number}/{own}", packed.data)
                self._channel.append(f"answers/{number}", f"{own},".encode())
                return

    def _leave_parts(self, parts: dict[str, bytes]) -> None:
        """Before the parcel that names them: whoever reads that finds them all."""
        new = [name for name in parts if name not in self._left]
        for some in batches(new, _PARTS):
            self._channel.set_missing({f"part/{name}": parts[name] for name in some})
        self._left = set(parts)  # of what is not used any more somebody else may be the next to need it
