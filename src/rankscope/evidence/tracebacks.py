"""Python tracebacks found in the lines that a rank wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from rankscope.evidence.model import EarlierException, Frame, RaisedException
from rankscope.mask import mask_text
from rankscope.whose_code import is_user_file

_MAX_MESSAGE_LINES = 60
_MAX_FOREIGN_LINES = 50
_MAX_LINES_TO_NEXT = 4

_HEAD = re.compile(
    r"^(?P<prefix>.*?)(?P<kind>Exception Group |Original |Remote )?Traceback \(most recent call last\):\s*$"
)
_INDENT = re.compile(r'^(\s*)  File "')
_FILE = re.compile(r'^\s+File "(?P<file>.+?)", line (?P<line>\d{1,9})(?:, in (?P<function>.+))?$')
# Names without a module begin with a capital: a stray word of another line is no exception.
_RAISED = re.compile(r"^(?P<type>[A-Z_]\w+|[A-Za-z_]\w*(?:\.\w+)+)(?P<colon>:(?: (?P<message>.*)|\s*))?$")
_SYNTAX_ERROR = re.compile(r"^(?:SyntaxError|IndentationError|TabError)(?:: (?P<message>.*))?$")
_THREAD = re.compile(r"Exception in thread (?P<name>.+):\s*$")
# Raised where nobody could catch it, such as __del__, and printed by Python itself: it ended nothing.
_IGNORED = re.compile(r"Exception ignored |Exception ignored:|--- Logging error ---")
_SPAWNED = re.compile(r"-- Process \d+ terminated with the following error:\s*$")
_CHAIN = {
    "During handling of the above exception, another exception occurred:": "context",
    "The above exception was the direct cause of the following exception:": "cause",
}
# A line of something else: torch's and glog's log lines, timestamps, other processes' last words.
_NEW_SUBJECT = re.compile(
    r"^(?:\[?[IWEF]\d{4} \d\d:|\[\w+\]:|\d{4}-\d\d-\d\d[ T]|Exception ignored|Exception in thread"
    r"|Process \S+:$|terminate called|Fatal Python error:|\"\"\"$|'''$|--- )"
)


class _Open(msgspec.Struct):
    """A traceback that is being read."""

    prefix: str
    nested: bool
    ignored: bool
    thread: str
    group: bool = False
    frames: list[Frame] = msgspec.field(default_factory=list)
    type: str | None = None
    message: list[str] = msgspec.field(default_factory=list)
    message_follows: bool = False
    """The line of the type ends with a colon: the message begins below, perhaps after an empty line."""
    foreign: int = 0
    before: _Open | None = None
    """The exception that led to this one."""
    led: str = ""

    @property
    def tagged(self) -> bool:
        """Lines begin with more than spaces, such as `[rank1]: `: those of others can be told apart."""
        return bool(self.prefix.strip())

    def within(self, other: _Open) -> bool:
        """A member of the exception group `other`: Python draws it further to the right."""
        return other.group and self.prefix.rstrip().endswith("|") and len(self.prefix) > len(other.prefix)

    def text(self) -> str:
        return "\n".join(self.message).strip()

    def finished(self) -> RaisedException:
        assert self.type is not None
        frames = tuple(reversed(self.frames))
        chain = tuple(self._chain())
        return RaisedException(self.type, self.text(), None, frames, "output", self.thread, chain)

    def _chain(self) -> list[EarlierException]:
        found: list[EarlierException] = []
        at = self
        while at.before is not None and at.before.type is not None:
            led, at = at.led, at.before
            found.insert(0, EarlierException(at.type or "", at.text(), tuple(reversed(at.frames)), led))
        return found


class _Reader:
    def __init__(self) -> None:
        self.found: list[_Open] = []
        self._reading: _Open | None = None
        self._outer: list[_Open] = []
        """Those in whose message, or as whose members, the one that is being read is printed."""
        self._over = False
        """The one that is being read is at its end; the next line tells whether another one came of it."""
        self._link: tuple[str, _Open | None] | None = None
        """What led to the one that is about to begin, and how."""
        self._patience = 0

    @property
    def idle(self) -> bool:
        return self._reading is None and not self._outer and self._link is None

    def begin(self, begun: _Open) -> None:
        reading, link = self._reading, self._link
        if reading is not None and reading.type is not None and (begun.nested or begun.within(reading)):
            self._outer.append(reading)
        elif self._outer and (link is not None or begun.within(self._outer[-1])):
            self._finish()
        else:
            self.close()
        if self._outer:
            begun.thread, begun.ignored = self._outer[-1].thread, self._outer[-1].ignored
        if link is not None:
            begun.led, begun.before = link
        self._reading, self._over, self._link = begun, False, None

    def take(self, line: str) -> None:
        led = next((led for mark, led in _CHAIN.items() if line.rstrip().endswith(mark)), None)
        if led is not None:
            self._link, self._patience = (led, self._finish()), _MAX_LINES_TO_NEXT
        elif self._link is not None:
            self._patience -= 1
            if not self._patience:
                self.close()
        elif self._over and line.strip():
            self.close()
        elif self._reading is not None and not self._over:
            self._over = not _take(self._reading, line)
            if self._over and line.strip():
                self.close()

    def close(self) -> None:
        self._finish()
        while self._outer:
            self._reading = self._outer.pop()
            self._finish()
        self._link = None

    def _finish(self) -> _Open | None:
        """Ends the innermost traceback; those around it stay open."""
        ended, self._reading, self._over = self._reading, None, False
        if ended is None or ended.type is None or ended.ignored:
            return None
        self.found.append(ended)
        group = self._outer[-1] if self._outer else None
        if group is not None and ended.within(group) and (group.led != "group" or ended.before is group.before):
            group.before, group.led = ended, "group"
        return ended


def find_tracebacks(lines: Sequence[str]) -> tuple[RaisedException, ...]:
    """The exceptions whose tracebacks stand in a rank's output, in the order in which they were raised.

    Of a chain all are kept; the last is the one that ended it, and carries the others as its `chain`. An exception that
    another process sent, printed inside the message of the one that passed it on, comes before that one; so do the
    members of a group. Exceptions that Python reports as ignored are left out. Prefixes such as `[rank1]: ` may precede
    lines, and a traceback may stand indented in another text.
    """
    reader = _Reader()
    alone: dict[int, RaisedException] = {}
    for at, line in enumerate(lines):
        head = _HEAD.match(line) if "Traceback (most recent" in line else None
        if head:
            reader.begin(_begin(lines, at, head))
        elif not reader.idle:
            reader.take(line)
        elif (lone := _lone_syntax_error(lines, at)) is not None:
            alone[len(reader.found)] = lone
    reader.close()
    found = [each.finished() for each in reader.found]
    for place, lone in reversed(alone.items()):
        found.insert(place, lone)
    return tuple(found)


def masked(error: RaisedException) -> RaisedException:
    """Without the secrets that its texts may hold."""
    chain = tuple(replace(earlier, message=mask_text(earlier.message)) for earlier in error.chain)
    return replace(error, message=mask_text(error.message), chain=chain)


def _begin(lines: Sequence[str], at: int, head: re.Match[str]) -> _Open:
    prefix = head["prefix"]
    if head["kind"] == "Exception Group ":
        prefix = prefix.replace("+", "|")
    following = lines[at + 1] if at + 1 < len(lines) else ""
    # Text before the word on its line alone, such as a logger's, is no prefix of the lines below; they may be indented.
    if not following.startswith(prefix):
        indented = _INDENT.match(following)
        prefix = indented[1] if indented else ""
    before = lines[at - 1] if at > 0 else ""
    thread = _THREAD.search(before)
    nested = head["kind"] in {"Original ", "Remote "} or bool(_SPAWNED.search(before))
    name = thread["name"] if thread else "MainThread"
    return _Open(prefix, nested, bool(_IGNORED.search(before)), name, group=head["kind"] == "Exception Group ")


def _take(reading: _Open, raw: str) -> bool:
    """Adds the line to the traceback; False when the traceback is over."""
    line = _without(reading.prefix, raw)
    if line is None:
        if reading.type is not None and not reading.tagged:
            return False
        reading.foreign += 1
        return reading.foreign <= _MAX_FOREIGN_LINES
    if reading.type is None:
        return _take_frame(reading, line)
    if len(reading.message) >= _MAX_MESSAGE_LINES:
        return False
    empty = not line.strip()
    if not reading.tagged and ((empty and not reading.message_follows) or _NEW_SUBJECT.match(line)):
        return False
    reading.message_follows = reading.message_follows and empty
    reading.message.append(line)
    return True


def _take_frame(reading: _Open, line: str) -> bool:
    if match := _FILE.match(line):
        file = match["file"]
        # A line without a function is where a SyntaxError was found.
        name = match["function"] or "<module>"
        reading.frames.append(Frame(name, file, int(match["line"]), is_user_file(file)))
    elif line[:1].isspace() or not line:
        pass  # the code of the frame, the marks below it, "[Previous line repeated ...]"
    elif (match := _RAISED.match(line)) and not _NEW_SUBJECT.match(line):
        reading.type = match["type"]
        reading.message.append(match["message"] or "")
        reading.message_follows = bool(match["colon"]) and not match["message"]
    else:
        # Another thread wrote in between.
        reading.foreign += 1
        return reading.foreign <= _MAX_FOREIGN_LINES
    return True


def _without(prefix: str, line: str) -> str | None:
    """The line without its prefix; None when it has another."""
    if line.startswith(prefix):
        return line[len(prefix) :].rstrip()
    return "" if line and line == prefix.rstrip() else None


def _lone_syntax_error(lines: Sequence[str], at: int) -> RaisedException | None:
    """Python prints no head when the script itself does not parse."""
    match = _FILE.match(lines[at])
    if match is None or match["function"] is not None:
        return None
    for line in lines[at + 1 : at + 5]:
        if error := _SYNTAX_ERROR.match(line.strip()):
            frame = Frame("<module>", match["file"], int(match["line"]), is_user_file(match["file"]))
            return RaisedException(line.strip().split(":")[0], error["message"] or "", None, (frame,), source="output")
    return None
