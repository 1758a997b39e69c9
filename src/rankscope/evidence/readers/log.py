"""Logs of one or many ranks, of any size: read once in pieces, the telling lines and the ends kept."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from typing import BinaryIO

import msgspec
from msgspec.structs import replace

from rankscope.evidence.model import Exit, Log, LogLine, RaisedException
from rankscope.evidence.readers.log_ends import KernelLine, ends_in, kernel_line
from rankscope.evidence.readers.log_lines import SRUN_TAG, TAG, WITHIN_TAG, inner_rank, time_of
from rankscope.evidence.readers.log_merged import with_lines_of_all
from rankscope.evidence.tracebacks import find_tracebacks, masked
from rankscope.mask import mask_lines, mask_text

PIECE = 4 << 20
STANDARD_INPUT = "standard input"
_LONGEST_LINE = 4000
"""Bytes of a line that are kept."""
_MOST_WORDINGS = 300
"""Of one rank."""
_TAIL = 40
_BLOCK_LINES = 300
_BLOCK_BYTES = 48 << 10
_MOST_BLOCKS = 40
_STILL_ITS_END = 60
"""Lines that a rank may write after its last traceback, as in its teardown, and still have ended by it."""
_MOST_RANKS = 100_000
_MOST_BORING = 200_000

# Lower case: pieces are searched in lower case.
_NOTABLE = re.compile(
    rb"error|exception|traceback|time[d ]{0,2}-?out|fail|abort|kill|sig(?:nal|term|segv|int|bus)|memory"
    rb"|bus |nccl warn"
    rb"|xid|watchdog|heartbeat|barrier|connection |broken pipe|mismatch|inconsistent|no space|open files|ancdata|in use"
    rb"|cannot |exit ?code|exited|return code|segmentation|core dumped|deadlock|duplicate gpu|unknown|not supported"
    rb"|not been destroyed|got forked|lock file|no locks|too many|before the|no backend|bad_alloc|dump signal|enqueued"
    rb"|processgroup|nccl communicator|fingerprint|member: |truncated|culprit|data inconsistency|shutdown"
    rb"|numelin=|got completion|fallen off"
)
_BLOCK = re.compile(rb"traceback \(most recent call last\)|fatal python error:")
_DIGITS = re.compile(rb"0x[0-9a-f]+|\d+")


class _Writer(msgspec.Struct):
    """One rank of a log, or the lines of no rank, while it is read."""

    lines: int = 0
    first_at: float | None = None
    last_at: float | None = None
    last_order: int = -1
    tail: deque[str] = msgspec.field(default_factory=lambda: deque(maxlen=_TAIL))
    notable: dict[bytes, LogLine] = msgspec.field(default_factory=dict)
    blocks: list[tuple[int, float | None, list[str]]] = msgspec.field(default_factory=list)
    """Where among the rank's own lines a traceback began, when, and its lines."""
    files: set[str] = msgspec.field(default_factory=set)


class ReadLogs(msgspec.Struct, frozen=True):
    ranks: dict[int, Log]
    others: Log | None
    """Lines of no known rank."""
    ends: dict[int, tuple[Exit, int, str]]
    """Rank → how a launcher's words say it ended, its pid and host."""
    kernel: tuple[KernelLine, ...]
    fatal: dict[int | None, tuple[str, ...]]
    """Rank → the lines from `Fatal Python error:` on."""
    world_size: int | None
    pids: dict[int, int]


class LogReader:
    """Takes files one after another; `finish` gives what was found in all of them."""

    def __init__(self) -> None:
        self._writers: dict[int | None, _Writer] = {}
        self._order = 0
        self._ends: dict[int, tuple[Exit, int, str]] = {}
        self._stopped: set[int] = set()
        self._kernel: list[KernelLine] = []
        self._world: int | None = None
        self._pids: dict[int, int] = {}
        self._boring: set[int] = set()
        self._written: dict[str, float] = {}
        """When each file was written last."""

    def read(self, stream: BinaryIO, name: str, rank: int | None, near: float) -> None:
        """`rank`: whose file it is, where its name tells; `near`: when it was written last."""
        self._written[name] = near
        tag: re.Pattern[bytes] | None = None
        last_time: float | None = None
        for number, piece in enumerate(map(with_lines_of_all, _pieces(stream))):
            if number == 0:
                tag = _tag_of(piece)
                if rank is not None and tag is WITHIN_TAG:
                    tag = TAG  # in the file of one rank, such words speak of a device or of another rank
            last_time = self._read_piece(piece, name, rank, near, tag, last_time)

    def _read_piece(
        self, piece: bytes, name: str, rank: int | None, near: float, tag: re.Pattern[bytes] | None, time: float | None
    ) -> float | None:
        newest = time
        lower = piece.lower()
        owner: int | None
        starts: dict[int | None, deque[int]] = {}
        counts: dict[int | None, int] = {}
        total = piece.count(b"\n") + (not piece.endswith(b"\n"))
        tagged = 0
        if tag is not None:
            for match in tag.finditer(piece):
                owner = int(next(filter(None, match.groups())))
                if owner not in starts:
                    starts[owner] = deque(maxlen=_TAIL)
                    counts[owner] = 0
                starts[owner].append(match.start())
                counts[owner] += 1
                tagged += 1
        plain = rank if rank is not None else None
        if total > tagged:
            counts[plain] = counts.get(plain, 0) + total - tagged
            if tagged == 0 or rank is not None:
                starts.setdefault(plain, deque(_last_starts(piece, _TAIL), maxlen=_TAIL))
        self._take_notable(piece, lower, name, plain, near, tag, newest)
        for owner, positions in starts.items():
            writer = self._writer(owner, name)
            if writer is None:
                continue
            for position in positions:
                writer.tail.append(_text(piece, position))
            head, last = _text(piece, positions[0]), positions[-1]
            at = _time_before(piece, last, near) or newest
            if writer.first_at is None:
                writer.first_at = time_of(head, near) or at
            if at is not None:
                writer.last_at = at if writer.last_at is None else max(at, writer.last_at)
                newest = at if newest is None else max(newest, at)
            writer.last_order = max(writer.last_order, self._order + last)
        for owner, count in counts.items():
            writer = self._writer(owner, name)
            if writer is not None:
                writer.lines += count
        self._order += len(piece)
        return newest

    def _take_notable(
        self,
        piece: bytes,
        lower: bytes,
        name: str,
        plain: int | None,
        near: float,
        tag: re.Pattern[bytes] | None,
        time: float | None,
    ) -> None:
        block_end = 0
        at = time
        blocks = 0
        for start, end in self._notable_lines(lower):
            line = piece[start : min(end, start + _LONGEST_LINE)]
            match = tag.match(piece, start) if tag is not None else None
            owner = int(next(filter(None, match.groups()))) if match else inner_rank(line)
            if owner is None:
                owner = plain
            writer = self._writer(owner, name)
            if writer is None:
                continue
            text = line.decode("utf-8", "replace").rstrip("\r")
            at = time_of(text, near) or at
            shape = _DIGITS.sub(b"#", lower[start : min(end, start + 300)])
            known = writer.notable.get(shape)
            if known is not None:
                writer.notable[shape] = LogLine(known.text, known.at, known.order, known.count + 1)
            elif len(writer.notable) < _MOST_WORDINGS:
                writer.notable[shape] = LogLine(mask_text(text), at, self._order + start, 1)
            fresh = start >= block_end or match is not None
            if fresh and blocks < _MOST_BLOCKS and _BLOCK.search(lower, start, end):
                blocks += 1
                block, block_end = _block(piece, start, tag, match)
                before = piece.count(b"\n", 0, start) if tag is None else _own_lines(tag, piece, start, owner)
                self._keep_block(writer, writer.lines + before, at, block)
            self._take_words(text, piece, start, at, near)

    def _notable_lines(self, lower: bytes) -> list[tuple[int, int]]:
        """Where the telling lines of a piece begin and end. A log says the same over and over with other numbers: each
        wording is looked at once."""
        boring = self._boring
        if len(boring) > _MOST_BORING:
            boring.clear()
        found: list[int] = []
        for at, wording in enumerate(lower.translate(None, b"0123456789").split(b"\n")):
            mark = hash(wording)
            if mark in boring:
                continue
            if _NOTABLE.search(wording, 0, _LONGEST_LINE):
                found.append(at)
            else:
                boring.add(mark)
        if not found:
            return []
        ends = list(accumulate(len(line) + 1 for line in lower.split(b"\n")))
        return [(ends[at - 1] if at else 0, ends[at] - 1) for at in found]

    def _keep_block(self, writer: _Writer, position: int, at: float | None, block: list[str]) -> None:
        writer.blocks.append((position, at, block))
        if len(writer.blocks) > _MOST_BLOCKS:
            # The first tell how it began, the last how it ended.
            del writer.blocks[_MOST_BLOCKS // 2]

    def _take_words(self, text: str, piece: bytes, start: int, at: float | None, near: float) -> None:
        """What launchers and the kernel say about processes."""
        kernel = kernel_line(text, at)
        if kernel is not None and len(self._kernel) < 1000:
            self._kernel.append(kernel)
        for end in ends_in(text, piece[max(0, start - 600) : start + 200], at if at is not None else near):
            if end.world_size is not None:
                self._world = max(self._world or 0, end.world_size)
            if end.stopped_pid is not None:
                self._stopped.add(end.stopped_pid)
            if end.rank is not None and end.pid is not None:
                self._pids.setdefault(end.rank, end.pid)
            if end.rank is not None and end.code is not None:
                self._ends.setdefault(end.rank, (Exit(end.code, end.at, False), end.pid or 0, end.host))

    def _writer(self, owner: int | None, name: str) -> _Writer | None:
        writer = self._writers.get(owner)
        if writer is None:
            if len(self._writers) >= _MOST_RANKS:
                return None
            writer = self._writers[owner] = _Writer()
        writer.files.add(name)
        return writer

    def finish(self) -> ReadLogs:
        ranks = {
            owner: _log(writer, self._written)
            for owner, writer in sorted(self._writers.items(), key=lambda pair: pair[0] or 0)
            if owner is not None
        }
        others = self._writers.get(None)
        ends = {
            rank: (Exit(exit_.code, exit_.at, pid in self._stopped or exit_.code == -15), pid, host)
            for rank, (exit_, pid, host) in self._ends.items()
        }
        fatal = {}
        for owner, writer in self._writers.items():
            texts = [lines for _, _, lines in writer.blocks if "Fatal Python error:" in lines[0]]
            if texts:
                fatal[owner] = tuple(texts[-1])
        return ReadLogs(
            ranks,
            _log(others, self._written) if others is not None else None,
            ends,
            tuple(self._kernel),
            fatal,
            self._world,
            self._pids,
        )


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """Whole lines, some megabytes at a time. A traceback near the end of a piece goes with the next one."""
    rest = b""
    while True:
        read = stream.read(PIECE)
        piece = rest + read
        if not read:
            if piece:
                yield piece
            return
        cut = piece.rfind(b"\n") + 1
        if cut == 0:
            # A line that does not end: its beginning is all that can matter.
            rest = piece if len(piece) < 2 * PIECE else piece[:_LONGEST_LINE]
            continue
        late = piece.rfind(b"Traceback (most recent", max(0, cut - _BLOCK_BYTES), cut)
        late = late if late >= 0 else piece.rfind(b"Fatal Python error:", max(0, cut - _BLOCK_BYTES), cut)
        if late > 0:
            begin = piece.rfind(b"\n", 0, late) + 1
            cut = begin if begin > 0 else cut
        yield piece[:cut]
        rest = piece[cut:]


def _tag_of(piece: bytes) -> re.Pattern[bytes]:
    head = piece[: 1 << 16]
    lines = head.count(b"\n") + 1
    within = len(WITHIN_TAG.findall(head))
    if TAG.search(piece):
        # A logger's tag may stand at the beginning of some lines, and further in on the others.
        return WITHIN_TAG if within > len(TAG.findall(head)) else TAG
    if lines >= 4 and 2 * len(SRUN_TAG.findall(head)) > lines:
        return SRUN_TAG
    return WITHIN_TAG if within else TAG


def _own_lines(tag: re.Pattern[bytes], piece: bytes, end: int, owner: int | None) -> int:
    if owner is None:
        return piece.count(b"\n", 0, end)
    own = sum(int(next(filter(None, match.groups()))) == owner for match in tag.finditer(piece, 0, end))
    return own or piece.count(b"\n", 0, end)


def _last_starts(piece: bytes, most: int) -> list[int]:
    starts: list[int] = []
    end = len(piece) - piece.endswith(b"\n")
    while len(starts) < most and end > 0:
        start = piece.rfind(b"\n", 0, end) + 1
        starts.append(start)
        end = start - 1
    return starts[::-1] or [0]


def _text(piece: bytes, start: int) -> str:
    end = piece.find(b"\n", start)
    end = len(piece) if end < 0 else end
    return piece[start : min(end, start + _LONGEST_LINE)].decode("utf-8", "replace").rstrip("\r")


def _time_before(piece: bytes, position: int, near: float) -> float | None:
    """The time of the line, or of the nearest line above that has one."""
    for _ in range(50):
        at = time_of(piece[position : position + 240].partition(b"\n")[0].decode("utf-8", "replace"), near)
        if at is not None or position == 0:
            return at
        position = piece.rfind(b"\n", 0, position - 1) + 1
    return None


def _block(
    piece: bytes, start: int, tag: re.Pattern[bytes] | None, own: re.Match[bytes] | None
) -> tuple[list[str], int]:
    """The lines of the same writer from there on that may belong to a traceback, and where the last of them ends."""
    part = piece[start : start + _BLOCK_BYTES]
    lines = part.split(b"\n")[:_BLOCK_LINES]
    kept: list[str] = []
    for line in lines:
        match = tag.match(line) if tag is not None else None
        follows = match is None and tag is WITHIN_TAG
        if not follows and ((match is None) != (own is None) or (match and own and match.groups() != own.groups())):
            continue
        kept.append(line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip("\r"))
    return kept, start + sum(len(line) + 1 for line in lines)


def _log(writer: _Writer, written: dict[str, float]) -> Log:
    times = [written[name] for name in writer.files if name != STANDARD_INPUT]
    return Log(
        files=tuple(sorted(writer.files)),
        lines=writer.lines,
        first_at=writer.first_at,
        last_at=writer.last_at,
        last_order=writer.last_order,
        notable=tuple(sorted(writer.notable.values(), key=lambda line: line.order)),
        tail=mask_lines(writer.tail),
        exceptions=tuple(_exceptions(writer)),
        written_at=max(times, default=None),
    )


def _exceptions(writer: _Writer) -> Iterator[RaisedException]:
    seen: set[tuple[str, str]] = set()
    for position, at, lines in writer.blocks:
        if not lines or "Traceback" not in lines[0]:
            continue
        length = 0
        for error in find_tracebacks(lines):
            length = max(length, len(error.frames) * 2 + error.message.count("\n") + 2)
            key = (error.type, error.message[:200])
            if writer.lines - position - length > _STILL_ITS_END or key in seen:
                continue
            seen.add(key)
            yield replace(masked(error), at=at)
