"""What led to an exception: the first of the chain says what went wrong, and the first line of the user's says where.

`raise TrainingFailed() from error` ends the program at a line that explains nothing. So does an exception that only
repeats the text of another process's.
"""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import replace

from rankscope.diagnosis.rules.crashes.handlers import was_answered
from rankscope.diagnosis.rules.crashes.known_error import KnownError
from rankscope.diagnosis.rules.crashes.known_errors import recognise
from rankscope.evidence.model import Evidence, RaisedException, RankEvidence
from rankscope.evidence.tracebacks import find_tracebacks

_IN_DISTRIBUTED = "/torch/distributed/"
_QUOTED_HEAD = "Traceback (most recent call last)"
_NAMES_RANK = re.compile(r"(?i)\brank[ _:=#\[]*(\d+)")
_CONNECTION_ENDED = frozenset(
    {"ConnectionError", "ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError", "EOFError"}
)
QUOTED = "quoted"
"""The next exception only repeats the text of this one."""


class Link(msgspec.Struct, frozen=True):
    error: RaisedException
    led: str
    """How the next one came of it; empty for the last."""


class Account(msgspec.Struct, frozen=True):
    """What ended a rank, from the first exception on that counts."""

    links: tuple[Link, ...]
    """First raised first; the last is the one that ended it."""
    hidden: tuple[Link, ...]
    """What came before: exceptions that the program had expected, or hides with `from None`."""
    telling: int
    """Of the links, the first with a line of the user's."""

    @property
    def first(self) -> RaisedException:
        return self.links[0].error

    @property
    def told(self) -> RaisedException:
        return self.links[self.telling].error

    @property
    def last(self) -> RaisedException:
        return self.links[-1].error

    @property
    def victim(self) -> bool:
        """It began with a broken connection or a time-out: somebody else is to blame, whatever came of it here."""
        return any(says_victim(link.error) for link in (*self.hidden, self.links[0]))

    def came_of_lost_machine(self, evidence: Evidence) -> bool:
        """It began with a connection that ended, whoever had opened it, in a job that has lost a machine."""
        lost = any(node.state in ("gone", "cut-off", "unreachable") for node in evidence.nodes)
        return lost and short_type(self.links[0].error) in _CONNECTION_ENDED

    @property
    def quoting(self) -> RaisedException | None:
        """The exception that repeats the text of the one that is told; None where that one was raised here."""
        repeated = [at for at, link in enumerate(self.links) if link.led == QUOTED and at >= self.telling]
        return self.links[repeated[0] + 1].error if repeated else None

    @property
    def names_rank(self) -> int | None:
        """The rank whose error is repeated, where the text says so."""
        quoting = self.quoting
        named = _NAMES_RANK.search(quoting.message.partition(_QUOTED_HEAD)[0]) if quoting is not None else None
        return int(named[1]) if named else None


def account_of(rank: RankEvidence, exception: RaisedException, evidence: Evidence) -> Account:
    links = _links(rank, exception)
    start = len(links) - 1
    while start > 0 and _came_of(links[start - 1], links[start], evidence):
        start -= 1
    counting = links[start:]
    telling = next((at for at, link in enumerate(counting) if any(frame.user for frame in link.error.frames)), 0)
    return Account(counting, links[:start], telling)


def short_type(exception: RaisedException) -> str:
    return exception.type.rpartition(".")[2]


def first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "")


def known_error_of(exception: RaisedException) -> KnownError | None:
    """The table's entry for what an exception says."""
    return recognise(f"{exception.type}: {exception.message}", communication=_is_communication(exception))


def says_victim(exception: RaisedException) -> bool:
    known = known_error_of(exception)
    return known is not None and known.role == "victim"


def _is_communication(exception: RaisedException) -> bool:
    """Raised inside torch.distributed, beneath any code of the user."""
    for frame in exception.frames:
        if frame.user:
            return False
        if _IN_DISTRIBUTED in frame.file:
            return True
    return False


def _came_of(earlier: Link, later: Link, evidence: Evidence) -> bool:
    if earlier.led == "suppressed":
        return False
    return earlier.led != "context" or not was_answered(earlier.error, later.error, evidence)


def _links(rank: RankEvidence, exception: RaisedException) -> tuple[Link, ...]:
    found: list[Link] = []
    whole = exception if exception.chain else _as_printed(rank, exception)
    for earlier in whole.chain:
        error = replace(exception, type=earlier.type, message=earlier.message, frames=earlier.frames, chain=())
        found += (*_quoted(rank, error), Link(error, earlier.led))
    found += (*_quoted(rank, exception), Link(exception, ""))
    return tuple(found)


def _as_printed(rank: RankEvidence, exception: RaisedException) -> RaisedException:
    """The same exception with the chain that its traceback in the output shows, where only that one tells it."""
    printed = [each for each in rank.exceptions if each.source == "output" and each.chain]
    printed = printed or [each for each in find_tracebacks(rank.error_tail) if each.chain]
    return next((each for each in reversed(printed) if _alike(each, exception)), exception)


def _alike(one: RaisedException, other: RaisedException) -> bool:
    return short_type(one) == short_type(other) and first_line(one.message) == first_line(other.message)


def _quoted(rank: RankEvidence, exception: RaisedException) -> tuple[Link, ...]:
    """The exception of another process, or of another rank, that the text of this one repeats."""
    if _QUOTED_HEAD not in exception.message:
        return ()
    found = find_tracebacks(exception.message.splitlines())
    led = {(earlier.type, earlier.message) for each in found for earlier in each.chain}
    separate = [each for each in found if (each.type, each.message) not in led]
    own = next((each for each in separate if not says_victim(each)), separate[0] if separate else None)
    if own is not None:
        own = replace(own, at=exception.at)
        return (*_links(rank, own)[:-1], Link(own, QUOTED))
    # The message may have been cut: the output has the whole of it, in the order in which it was raised.
    kind = short_type(exception)
    earlier = [each for each in rank.exceptions if each.source == "output" and short_type(each) == kind]
    return (Link(replace(earlier[0], at=exception.at), QUOTED),) if len(earlier) > 1 else ()
