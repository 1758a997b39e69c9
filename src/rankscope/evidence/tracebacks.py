"""Python tracebacks found in the lines that a rank wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rankscope.evidence.model import Frame, RaisedException
from rankscope.whose_code import is_user_file

_MAX_MESSAGE_LINES = 60
_MAX_FOREIGN_LINES = 50

_HEAD = re.compile(
    r"^(?P<prefix>.*?)(?P<kind>Exception Group |Original |Remote )?Traceback \(most recent call last\):\s*$"
)
_FILE = re.compile(r'^\s+File "(?P<file>.+?)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
# Names without a module begin with a capital: a stray word of another line is no exception.
_RAISED = re.compile(r"^(?P<type>[A-Z_]\w+|[A-Za-z_]\w*(?:\.\w+)+)(?P<colon>:(?: (?P<message>.*)|\s*))?$")
_SYNTAX_ERROR = re.compile(r"^(?:SyntaxError|IndentationError|TabError)(?:: (?P<message>.*))?$")
_THREAD = re.compile(r"Exception in thread (?P<name>.+):\s*$")
# Raised where nobody could catch it, such as __del__, and printed by Python itself: it ended nothing.
_IGNORED = re.compile(r"Exception ignored |Exception ignored:|--- Logging error ---")
_SPAWNED = re.compile(r"-- Process \d+ terminated with the following error:\s*$")
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# A line of something else: torch's and glog's log lines, timestamps, other processes' last words.
_NEW_SUBJECT = re.compile(
    r"^(?:\[?[IWEF]\d{4} \d\d:|\[\w+\]:|\d{4}-\d\d-\d\d[ T]|Exception ignored|Exception in thread"
    r"|Process \S+:$|terminate called|Fatal Python error:|\"\"\"$|'''$|--- )"
)


@dataclass
class _Open:
    """A traceback that is being read."""

    prefix: str
    nested: bool
    ignored: bool
    thread: str
    frames: list[Frame] = field(default_factory=list)
    type: str | None = None
    message: list[str] = field(default_factory=list)
    message_follows: bool = False
    """The line of the type ends with a colon: the message begins below, perhaps after an empty line."""
    foreign: int = 0

    def finished(self) -> RaisedException | None:
        if self.type is None or self.ignored:
            return None
        message = "\n".join(self.message).strip()
        frames = tuple(reversed(self.frames))
        return RaisedException(self.type, message, None, frames, source="output", thread=self.thread)


def find_tracebacks(lines: Sequence[str]) -> tuple[RaisedException, ...]:
    """The exceptions whose tracebacks stand in a rank's output, in the order in which they were raised.

    Of a chain all are kept; the last is the one that ended it. An exception that another process sent,
    printed inside the message of the one that passed it on, comes before that one.
    Exceptions that Python reports as ignored are left out. Prefixes such as `[rank1]: ` may precede lines.
    """
    found: list[RaisedException] = []
    outer: list[_Open] = []
    reading: _Open | None = None

    def close() -> None:
        nonlocal reading
        if reading is not None and (exception := reading.finished()) is not None:
            found.append(exception)
        reading = None
        while outer:
            if (exception := outer.pop().finished()) is not None:
                found.append(exception)

    for at, line in enumerate(lines):
        head = _HEAD.match(line) if "Traceback (most recent" in line else None
        if head:
            begun = _begin(lines, at, head)
            if begun.nested and reading is not None and reading.type is not None:
                outer.append(reading)
                begun.thread, begun.ignored = reading.thread, reading.ignored
            else:
                close()
            reading = begun
        elif reading is not None:
            if not _take(reading, line):
                close()
        elif (lone := _lone_syntax_error(lines, at)) is not None:
            found.append(lone)
    close()
    return tuple(found)


def _begin(lines: Sequence[str], at: int, head: re.Match[str]) -> _Open:
    prefix = head["prefix"]
    if head["kind"] == "Exception Group ":
        prefix = prefix.replace("+", "|")
    following = lines[at + 1] if at + 1 < len(lines) else ""
    # Text before the word on its line alone, such as a logger's, is no prefix of the lines below.
    if not following.startswith(prefix):
        prefix = ""
    before = lines[at - 1] if at > 0 else ""
    thread = _THREAD.search(before)
    nested = head["kind"] in {"Original ", "Remote "} or bool(_SPAWNED.search(before))
    return _Open(prefix, nested, bool(_IGNORED.search(before)), thread["name"] if thread else "MainThread")


def _take(reading: _Open, raw: str) -> bool:
    """Adds the line to the traceback; False when the traceback is over."""
    line = _without(reading.prefix, raw)
    if line is None:
        reading.foreign += 1
        return reading.foreign <= _MAX_FOREIGN_LINES
    if reading.type is None:
        return _take_frame(reading, line)
    if line.strip() in _CHAIN or len(reading.message) >= _MAX_MESSAGE_LINES:
        return False
    empty = not line.strip()
    if not reading.prefix and ((empty and not reading.message_follows) or _NEW_SUBJECT.match(line)):
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
