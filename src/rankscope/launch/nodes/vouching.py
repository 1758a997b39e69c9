"""How a launcher knows that what it hears was said in this attempt, and is not replayed from another.

A seal tells that a word comes from somebody who has the key, and where on the store it was left. It does not tell when:
the store keeps what earlier attempts said, and another job may have the same key. Every place has the mark of the
attempt in its name, which node 0 makes anew each time. But the mark lies on the store too: whoever reaches it can put
an old mark in its place, and the old words with it. So nobody takes a mark on trust:

- Every node leaves a number that nobody has used before, sealed, under the mark that it has read (`ask/N`).
- Node 0 seals that very number under the mark that it has made (`known/N`).
- Whoever finds its own number there is answered by somebody who has the key, and has it now. The mark is new, then, and
  whatever is sealed under it was said in this attempt. Which job, which attempt and how many nodes is part of the key
  (`key_of_attempt`): node 0 of another one cannot answer by mistake.

Until it is answered, a launcher that was given its key hears nobody. One whose key was made in the run's folder, which
may be another folder on each node, hears the others as if they shared no key: that informs, and orders nothing. Node 0
needs no answer, and gives none any more once it has left the attempt for the next.

Nobody waits for anybody: a node that comes late asks late, a launcher that was replaced asks again, and one that never
comes is not missed. A node says one word and reads one, whatever the number of nodes; node 0 learns from one list who
has asked. A stranger who alters mark, number or answer keeps nodes from being known, no more.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable

from rankscope.launch.nodes.channel import BATCH, Channel, batches, numbers_in

_NONCE_BYTES = 16
_PATIENT_TURNS = 20
"""Of the exchange; an answer comes within two or three."""


class Vouching:
    """One launcher's part in it, in one attempt."""

    def __init__(self, channel: Channel, node: int, count: int, note: Callable[[str], None]) -> None:
        self._channel = channel
        self._node = node
        self._count = count
        self._note = note
        self._nonce = os.urandom(_NONCE_BYTES)
        self._read = 0
        """Bytes of the list of those who ask that were seen to."""
        self._left = False
        self._unanswered = 0
        self.vouched = node == 0
        """What is sealed under the mark was said in this attempt."""
        self.refused = False
        """Node 0 is said to have another key."""

    def ask(self, channel: Channel) -> None:
        if self._node != 0 and channel.has_key:
            channel.say(f"ask/{self._node}", self._nonce)
            channel.append("asks", f",{self._node},".encode())

    def listen(self) -> None:
        """For the answer."""
        if self.vouched or not self._channel.has_key:
            return
        # Anybody may say so. It proves nothing, and what comes of it is that this node waits no longer.
        self.refused = self.refused or self._channel.read([f"unknown/{self._node}"])[0] == self._nonce
        word = self._channel.hear([f"known/{self._node}"])[0]
        self.vouched = word is not None and word.verified and hmac.compare_digest(word.content, self._nonce)
        self._unanswered += not self.vouched
        if self._unanswered == _PATIENT_TURNS and self._channel.only_sealed:
            self._note("nobody who has the key of this job has answered on the rendezvous store: node 0 is not heard")

    def answer(self) -> None:
        """Whoever has asked since; who has another key is told so, and need not wait."""
        if self._node != 0 or self._left or not self._channel.has_key:
            return
        named = self._channel.read(["asks"])[0] or b""
        for some in batches(numbers_in(named[self._read :], self._count), BATCH):
            asked = self._channel.hear([f"ask/{node}" for node in some])
            for node, word in zip(some, asked, strict=True):
                if word is None or self._left:
                    continue
                if word.verified:
                    self._channel.say(f"known/{node}", word.content)
                else:
                    self._channel.set(f"unknown/{node}", word.content[:_NONCE_BYTES])
        self._read = len(named)

    def leave(self) -> None:
        """The attempt is over here: nobody is let into it any more."""
        self._left = True
