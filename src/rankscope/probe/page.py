"""The beacon: one memory-mapped page file per process, written by the rank, readable by anyone after its death.

Layout: a header, a ring of calls, a heap of texts that the others refer to by number, and a ring of stages. Only the
standard library, and little of it: this is imported into every process of the job.
"""

from __future__ import annotations

import _thread
import itertools
import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable, Sequence

MAGIC = b"RSCOPE02"
RING_SLOTS = 4096
HEADER_BYTES = 4096
HEAP_BYTES = 512 * 1024
KEPT_FREE_BYTES = 64 * 1024
"""Of the heap, for what comes last and matters most: exceptions, and faults of the probe."""
CALL = struct.Struct("<QQQQIIIIiqIIBBH")
RING_OFFSET = HEADER_BYTES
HEAP_OFFSET = RING_OFFSET + RING_SLOTS * CALL.size
STAGES_OFFSET = HEAP_OFFSET + HEAP_BYTES
STAGES_HEAD = struct.Struct("<QIIq")
"""Stages begun, stages passed, whether the set-up is over, the step that the program itself declared (-1: none)."""
STAGE_SLOTS = 512
STAGE_BEGUN = struct.Struct("<QQQIIIIII")
"""Time, host memory, GPU memory; heap numbers of label, words, kind, note and site; thread."""
STAGE_ENDED = struct.Struct("<QQQII")
"""Time (0: not yet), host memory, GPU memory, number (0: not yet), bits."""
STAGE_RECORD = struct.Struct("<QQQ16sIIQQQII")
"""Both parts, the numbers of the four texts packed already."""
STAGE_TAIL = struct.Struct("<QQ16sIIQQQII")
"""The same behind the time."""
STAGE_TEXTS = struct.Struct("<IIII")
STAGE_BYTES = STAGE_RECORD.size
STAGE_RING_OFFSET = STAGES_OFFSET + 64
STAGES_WORD, STAGE_RING_WORD, STAGE_WORDS = STAGES_OFFSET // 8, STAGE_RING_OFFSET // 8, STAGE_BYTES // 8
"""Where these begin, and how long a stage is, in words of 8 bytes."""

FINGERPRINTS_OFFSET = STAGE_RING_OFFSET + STAGE_SLOTS * STAGE_BYTES
FINGERPRINTS_WORD = FINGERPRINTS_OFFSET // 8
"""How many process groups have a slot; then the slots, in words of 8 bytes: members and name (0: not compared), calls,
the fingerprint after each of the newest calls, and that after every `COARSE_STEP`th, for ranks that are far apart."""
FINGERPRINT_SLOTS = 64
FINGERPRINT_HEAD_WORDS = 2
FINE_SLOTS, COARSE_SLOTS, COARSE_STEP = 64, 64, 16
FINGERPRINT_WORDS = FINGERPRINT_HEAD_WORDS + FINE_SLOTS + COARSE_SLOTS
FINGERPRINT_FACTOR, FINGERPRINT_MASK = 0x9E3779B1, 0xFFFFFFFF
"""Of the sum: what was called in the upper half of the word, from where in the lower."""
EXCHANGES_WORD = FINGERPRINTS_WORD + 1 + FINGERPRINT_SLOTS * FINGERPRINT_WORDS
EXCHANGES_OFFSET = 8 * EXCHANGES_WORD
"""How many `all_to_all` calls were written down; then a ring of them, in words of 8 bytes: the group's members and
name, the call's number in the group, how many members there are, the balance of its shares (over all members they sum
up to 0), and the elements that it sends to and expects from each member."""
EXCHANGE_SLOTS, EXCHANGE_MEMBERS = 128, 64
EXCHANGE_HEAD_WORDS = 4
EXCHANGE_WORDS = EXCHANGE_HEAD_WORDS + 2 * EXCHANGE_MEMBERS
PAGE_BYTES = EXCHANGES_OFFSET + 8 * (1 + EXCHANGE_SLOTS * EXCHANGE_WORDS)

IDENTITY = struct.Struct("<8sIiiIQ")
"""Magic, pid, rank, declared world, heap bytes used, start time."""
COUNTERS_OFFSET = 64
COUNTERS = struct.Struct("<QQQQ")
"""Time of the last change, optimizer steps, batches, calls."""
LOADER_OFFSET = 96
LOADER = struct.Struct("<QIIIIQ")
"""Batches, number, workers, site, state, time of change."""
LOADERS_OFFSET = 1024
LOADER_RUN = struct.Struct("<QqII")
"""Batches, length (-1: not known), number + 1 (0: an empty slot), site. The run that goes on has its batches above."""
LOADER_SLOTS = 16
COUNTERS_WORD, LOADER_WORD = COUNTERS_OFFSET // 8, LOADER_OFFSET // 8
_CHANGED, _STEPS, _BATCHES, _CALLS = range(COUNTERS_WORD, COUNTERS_WORD + 4)
RING_WORD, CALL_WORDS = RING_OFFSET // 8, CALL.size // 8
"""Where these begin, and how long a call is, in words of 8 bytes."""
STAGE_OFFSET = 128
STAGE = struct.Struct("<QI")
"""Since when, heap number."""
FLAGS_OFFSET = 144
FLAGS = struct.Struct("<IIII")
"""Bits, exit site, exit note, reserved."""

FINALIZING = 1
STACKS_ON_SIGNAL = 8
RECORDER_SERVED = 16
WORK_OVER, WORK_FAILED = 32, 64
"""The process stays, and the work that it was given has ended; by an exception."""

LOADER_GAVE, LOADER_EXHAUSTED, LOADER_WAITING = 0, 2, 4

FAILED = 1
STAGE_ANNOUNCED = 2
"""Long calls: told before they are made."""
STAGE_ALWAYS = 4
"""Shown whenever stages are shown at all: marks of memory."""
SEPARATOR = "\x1f"
EARLIER = "\x1e"
"""Between an exception and those that led to it."""

TEXT, SITE, GROUP, EXCEPTION, ERROR = b"T", b"S", b"G", b"X", b"E"
NON_FINITE = b"N"
HELD = b"M"
"""What the rank held on its GPU when its memory ran out."""
EXCEPTION_AT_EXIT, EXCEPTION_OF_THREAD, EXCEPTION_OF_WORK = b"H", b"D", b"W"
"""One that was being handled when the program ended itself; one that ended a thread; one that ended the work which the
process had been given, and not the process."""
HEAP_ENTRY = struct.Struct("<cI")
_LAST_WORDS = (EXCEPTION, EXCEPTION_AT_EXIT, EXCEPTION_OF_THREAD, EXCEPTION_OF_WORK, ERROR, NON_FINITE, HELD)

NUMERICS_OFFSET = 2048
NUMERICS = struct.Struct("<QQ")
"""Notes of non-finite values, backward passes from a loss that was not finite."""
PHASES_OFFSET = 2112
PHASES = struct.Struct("<QQQddddd")
"""Counted since, until, optimizer steps at the beginning; seconds of data, forward, backward, waiting, saving."""
CHECKSUMS_OFFSET = 2304
CHECKSUM = struct.Struct("<QdII")
"""Optimizer steps made, value, group, name of the tensor."""
CHECKSUM_SLOTS = 64
PROGRAM = b"P"
"""Of the heap: where the program itself lies, if it was installed like a library."""
TRACKER = b"K"
"""Of the heap: where the program keeps its own record of the run."""

_HEAP_USED_OFFSET = 8 + 4 + 4 + 4
_now = time.time_ns
pack_u64 = struct.Struct("<Q").pack_into
_unpack_u64 = struct.Struct("<Q").unpack_from
_pack_u32 = struct.Struct("<I").pack_into


def loader_slot(number: int) -> int:
    return LOADERS_OFFSET + number % LOADER_SLOTS * LOADER_RUN.size


Frames = list[tuple[str, int, str]]
"""File, line and function, innermost first."""
Earlier = tuple[str, str, str, Frames]
"""An exception that led to another: how, its type, its text, its frames."""
UNFINISHED = ".new"
"""Added to a page's name until a reader would understand it."""


class Page:
    """The writing side. Every method is safe to call from any thread; none raises for lack of room."""

    def __init__(self, path: str, rank: int) -> None:
        self._followers: list[Callable[[mmap.mmap], object]] = []
        self._use(_mapped(path + UNFINISHED))
        self.path = path
        self.detached = False
        self.rank = rank
        self._lock = _thread.RLock()
        self._heap_used = 0
        self._heap_count = 0
        self.texts: dict[str, int] = {}
        """Heap numbers of the texts stored so far."""
        self.site_sums: dict[int, int] = {}
        """Heap numbers of the sites stored so far → checksums that are the same in every process."""
        self.members: dict[str, str] = {}
        """Process groups of which this process is a member → their ranks."""
        self._flags = 0
        self.next_call = itertools.count()
        self._numerics = [0, 0]
        self._checksums = 0
        IDENTITY.pack_into(self.map, 0, MAGIC, os.getpid(), rank, 0, 0, _now())
        STAGES_HEAD.pack_into(self.map, STAGES_OFFSET, 0, 0, 0, -1)
        self.text("")
        self.touch()
        os.rename(path + UNFINISHED, path)

    def _use(self, mapped: mmap.mmap) -> None:
        self.map = mapped
        self.words = memoryview(mapped).cast("Q")
        """The same as numbers of 8 bytes, for what every step writes: setting one costs a third of packing one."""
        for follower in self._followers:
            follower(mapped)

    def follow(self, follower: Callable[[mmap.mmap], object]) -> None:
        """Tell where the page lies, now and whenever that changes."""
        self._followers.append(follower)
        follower(self.map)

    @property
    def steps(self) -> int:
        return self.words[_STEPS]

    @property
    def batches(self) -> int:
        return self.words[_BATCHES]

    @property
    def calls(self) -> int:
        return self.words[_CALLS]

    def detach(self) -> None:
        """In a forked child: what is written from here on stays in its own memory."""
        used = HEAP_OFFSET + self._heap_used
        private = mmap.mmap(-1, PAGE_BYTES)
        private[:HEADER_BYTES] = self.map[:HEADER_BYTES]
        private[HEAP_OFFSET:used] = self.map[HEAP_OFFSET:used]
        self._use(private)
        self._lock = _thread.RLock()
        self.detached = True

    def attach(self, path: str) -> None:
        """Give a detached page a file of its own."""
        shared = _mapped(path + UNFINISHED)
        shared[:] = self.map[:]
        struct.pack_into("<I", shared, 8, os.getpid())
        os.rename(path + UNFINISHED, path)
        self._use(shared)
        self.path = path
        self.detached = False

    def _append(self, kind: bytes, payload: str) -> int:
        data = payload.encode("utf-8", "replace")
        with self._lock:
            end = self._heap_used + HEAP_ENTRY.size + len(data)
            if end > (HEAP_BYTES if kind in _LAST_WORDS else HEAP_BYTES - KEPT_FREE_BYTES):
                return 0
            start = HEAP_OFFSET + self._heap_used
            HEAP_ENTRY.pack_into(self.map, start, kind, len(data))
            self.map[start + HEAP_ENTRY.size : HEAP_OFFSET + end] = data
            number = self._heap_count
            self._heap_count += 1
            self._heap_used = end
            _pack_u32(self.map, _HEAP_USED_OFFSET, end)
            return number

    def text(self, value: str) -> int:
        """The heap number of a short text, stored once."""
        number = self.texts.get(value)
        if number is None:
            number = self._append(TEXT, value[:4096])
            if number or not value:  # without room it is not remembered either: keys of a store never end
                self.texts[value] = number
        return number

    def site(self, frames: list[tuple[str, int, str]], through: str = "") -> int:
        """`through`, the library's function that the innermost frame called, follows the frames as one text more."""
        joined = _join_frames(frames)
        number = self._append(SITE, f"{joined}{SEPARATOR}{through}" if joined and through else joined)
        if number:
            self.site_sums[number] = zlib.crc32(joined.encode("utf-8", "replace"))
        return number

    def program(self, folders: tuple[str, ...]) -> None:
        self._append(PROGRAM, SEPARATOR.join(folders))

    def tracker(self, kind: str, place: str, run: str) -> None:
        self._append(TRACKER, SEPARATOR.join((kind, place, run)))

    def group(self, name: str, description: str, ranks: list[int]) -> None:
        self.members[name] = ",".join(map(str, ranks))
        self._append(GROUP, SEPARATOR.join((name, description, self.members[name])))

    def exception(
        self,
        kind: str,
        message: str,
        thread: str,
        frames: Frames,
        chain: Sequence[Earlier] = (),
        entry: bytes = EXCEPTION,
    ) -> None:
        """`chain`: what led to it, the first raised first. Where there is no room for all, less of it is stored."""
        head = SEPARATOR.join((kind, _plain(message[:8192]), str(_now()), thread))
        own = head + SEPARATOR + _join_frames(frames)
        earlier = [
            SEPARATOR.join((led, name, _plain(text[:4096]), _join_frames(theirs))) for led, name, text, theirs in chain
        ]
        for text in (EARLIER.join((own, *earlier)), EARLIER.join((own, *earlier[:1])), own, head):
            if self._append(entry, text):
                return

    def held(self, text: str) -> None:
        """What the rank held on its GPU when its memory ran out."""
        self._append(HELD, text[:4096])

    def error(self, message: str) -> None:
        """Something failed inside the probe; shown in the report."""
        self._append(ERROR, message[:1024])

    def non_finite(
        self,
        kind: str,
        step: int,
        value: str,
        tensors: list[str],
        count: int,
        *,
        local: bool,
        detail: str,
        frames: list[tuple[str, int, str]],
    ) -> None:
        """A value that was not finite; `tensors` are the first names of `count`."""
        names = ", ".join(tensors)[:2048]
        head = (kind, str(step), str(_now()), value, names, str(count), "1" if local else "0", detail[:1024])
        text = SEPARATOR.join(part.replace(SEPARATOR, " ") for part in head)
        self._append(NON_FINITE, text + (SEPARATOR + _join_frames(frames) if frames else ""))
        self._numerics[0] += 1
        NUMERICS.pack_into(self.map, NUMERICS_OFFSET, *self._numerics)

    @property
    def not_finite(self) -> bool:
        """Whether a value of this rank stopped being finite."""
        return bool(self._numerics[0])

    def bad_loss(self) -> None:
        self._numerics[1] += 1
        NUMERICS.pack_into(self.map, NUMERICS_OFFSET, *self._numerics)

    def phases(self, since: int, first_step: int, seconds: list[float]) -> None:
        PHASES.pack_into(self.map, PHASES_OFFSET, since, _now(), first_step, *seconds)

    def checksum(self, step: int, value: float, group: str, name: str) -> None:
        at = CHECKSUMS_OFFSET + (self._checksums % CHECKSUM_SLOTS) * CHECKSUM.size
        CHECKSUM.pack_into(self.map, at, step, value, self.text(group), self.text(name))
        self._checksums += 1

    def touch(self) -> None:
        pack_u64(self.map, COUNTERS_OFFSET, _now())

    def stage(self, name: str) -> None:
        now = _now()
        STAGE.pack_into(self.map, STAGE_OFFSET, now, self.text(name))
        pack_u64(self.map, COUNTERS_OFFSET, now)

    def declare(self, rank: int, world: int) -> None:
        self.rank = rank
        struct.pack_into("<ii", self.map, 12, rank, world)

    def step(self) -> None:
        self.words[_STEPS] += 1
        self.touch()

    def loader_begun(self, number: int, length: int, site: int) -> None:
        """A pass over a loader begins; the one before it is over, with the batches that it had given."""
        before = LOADER.unpack_from(self.map, LOADER_OFFSET)
        if number > 0:
            pack_u64(self.map, loader_slot(number - 1), before[0])
        LOADER_RUN.pack_into(self.map, loader_slot(number), 0, length, (number + 1) % 2**32, site)

    def loader(self, batches: int, number: int, workers: int, site: int, state: int) -> None:
        if state == LOADER_GAVE:
            self.words[_BATCHES] += 1
        now = self.words[_CHANGED] = _now()
        LOADER.pack_into(self.map, LOADER_OFFSET, batches, number, workers, site, state, now)

    def raise_flag(self, bit: int) -> None:
        self._flags |= bit
        _pack_u32(self.map, FLAGS_OFFSET, self._flags)

    def lower_flag(self, bit: int) -> None:
        self._flags &= ~bit
        _pack_u32(self.map, FLAGS_OFFSET, self._flags)

    def leaving(self, site: int, note: str) -> None:
        struct.pack_into("<II", self.map, FLAGS_OFFSET + 4, site, self.text(note))

    def enter(
        self,
        op: int,
        group: int,
        seq: int,
        site: int,
        thread: int,
        depth: int,
        peer: int,
        numel: int,
        dtype: int,
        note: int,
    ) -> int:
        """Records a call as begun; returns what `leave` wants."""
        now = _now()
        index = next(self.next_call)
        offset = RING_OFFSET + (index % RING_SLOTS) * CALL.size
        CALL.pack_into(
            self.map,
            offset,
            now,
            0,
            seq,
            self.steps,
            op,
            group,
            site,
            thread,
            peer,
            numel,
            dtype,
            note,
            depth,
            0,
            0,
        )
        self.words[_CALLS] = index + 1
        self.words[_CHANGED] = now
        return index

    def leave(self, index: int, failed: bool) -> float:
        """Records a call as left; returns the seconds it took."""
        now = entered = _now()
        if self.calls - index < RING_SLOTS:
            offset = RING_OFFSET + (index % RING_SLOTS) * CALL.size
            (entered,) = _unpack_u64(self.map, offset)
            pack_u64(self.map, offset + 8, now)
            if failed:
                self.map[offset + CALL.size - 3] = FAILED
        pack_u64(self.map, COUNTERS_OFFSET, now)
        return (now - entered) / 1e9

    def end_set_up(self) -> None:
        _pack_u32(self.map, STAGES_OFFSET + 12, 1)

    def declare_step(self, number: int) -> None:
        struct.pack_into("<q", self.map, STAGES_OFFSET + 16, number)
        self.touch()


own_pages: list[Page] = []
"""The page of this process, once it has one."""


def _mapped(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, PAGE_BYTES)
        return mmap.mmap(fd, PAGE_BYTES)
    finally:
        os.close(fd)


def _plain(text: str) -> str:
    return text.replace(SEPARATOR, " ").replace(EARLIER, " ")


def _join_frames(frames: Frames) -> str:
    return SEPARATOR.join(f"{file}{SEPARATOR}{line}{SEPARATOR}{function}" for file, line, function in frames)
