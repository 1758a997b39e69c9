"""Reads the beacon pages that the probe writes, alive or dead, and asks the probe's listener."""

from __future__ import annotations

import math
import socket
import struct
from pathlib import Path

import msgspec
from msgspec.structs import replace

from rankscope.errors import EvidenceError
from rankscope.evidence.exchanges import exchanges_of
from rankscope.evidence.flight import MOST_RANKS
from rankscope.evidence.model import (
    Call,
    Checksum,
    EarlierException,
    Loader,
    LoaderRun,
    Phases,
    Progress,
    RaisedException,
    StackSample,
    Thread,
)
from rankscope.evidence.page_heap import Heap, frames_of
from rankscope.evidence.stages import read_stages
from rankscope.mask import mask_text
from rankscope.probe import page as layout
from rankscope.probe.listener import RECORD

_MAX_LISTENER_BYTES = 8 << 20


class PageContent(msgspec.Struct, frozen=True):
    pid: int
    rank: int
    """-1 where the process is no rank."""
    started_at: float
    progress: Progress
    exceptions: tuple[RaisedException, ...]
    stacks_on_signal: bool
    recorder_served: bool
    trackers: tuple[tuple[str, str, str], ...] = ()
    """Where the program keeps its own record of the run: kind, place, run. Never saved: they may hold secrets."""


class Heartbeat(msgspec.Struct, frozen=True):
    """The few numbers that tell whether a rank goes on; cheap enough to read several times a second."""

    changed_at: float
    steps: int
    batches: int
    calls: int
    waiting_since: float | None
    """When the call that the rank is in now was entered; None outside of any."""
    non_finite: int = 0
    """Notes of non-finite values."""
    bad_losses: int = 0
    phases: Phases | None = None


def read_heartbeat(path: Path) -> Heartbeat:
    """Raises EvidenceError where the page cannot be read."""
    try:
        with path.open("rb") as file:
            header = file.read(layout.HEADER_BYTES)
            changed, steps, batches, calls = layout.COUNTERS.unpack_from(header, layout.COUNTERS_OFFSET)
            waiting = None
            # A blocking call is among the newest: what it calls in turn is recorded after it.
            for index in range(calls - 1, max(-1, calls - 5), -1):
                file.seek(layout.RING_OFFSET + (index % layout.RING_SLOTS) * layout.CALL.size)
                entered, left = struct.unpack("<QQ", file.read(16))
                if left == 0 and entered:
                    waiting = entered / 1e9
    except (OSError, struct.error) as error:
        raise EvidenceError(f"{path}: {error}") from error
    notes, bad_losses = layout.NUMERICS.unpack_from(header, layout.NUMERICS_OFFSET)
    return Heartbeat(changed / 1e9, steps, batches, calls, waiting, notes, bad_losses, _read_phases(header))


def read_work(path: Path) -> tuple[bool, bool]:
    """Of a process that was given work and stays: whether the work is over, and whether an exception ended it."""
    try:
        with path.open("rb") as file:
            file.seek(layout.FLAGS_OFFSET)
            flags, *_ = layout.FLAGS.unpack(file.read(layout.FLAGS.size))
    except (OSError, struct.error) as error:
        raise EvidenceError(f"{path}: {error}") from error
    return bool(flags & layout.WORK_OVER), bool(flags & layout.WORK_FAILED)


def read_page(path: Path, *, newest_calls: int = layout.RING_SLOTS) -> PageContent:
    """Raises EvidenceError where the page cannot be read or is none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror}") from error
    if len(data) < layout.PAGE_BYTES or data[:8] != layout.MAGIC:
        raise EvidenceError(f"{path}: not a page of this version of rankscope")
    _, pid, rank, world, used, started = layout.IDENTITY.unpack_from(data, 0)
    heap = Heap()
    heap.extend(data[layout.HEAP_OFFSET : layout.HEAP_OFFSET + min(used, layout.HEAP_BYTES)])
    changed, steps, batches, total = layout.COUNTERS.unpack_from(data, layout.COUNTERS_OFFSET)
    since, stage = layout.STAGE.unpack_from(data, layout.STAGE_OFFSET)
    flags, exit_site, exit_note, _ = layout.FLAGS.unpack_from(data, layout.FLAGS_OFFSET)
    groups, non_finite, exceptions = (
        heap.groups(),
        heap.non_finite(),
        heap.exceptions(work_failed=bool(flags & layout.WORK_FAILED)),
    )
    progress = Progress(
        stage=heap.text(stage),
        stage_since=since / 1e9,
        steps=steps,
        batches=batches,
        changed_at=changed / 1e9,
        declared_world=world if 0 <= world < MOST_RANKS else 0,
        calls_total=total,
        calls=_read_calls(data, total, heap, newest_calls),
        groups=groups,
        loader=_read_loader(data, heap),
        earlier_loaders=_read_earlier_loaders(data, heap),
        exit_site=heap.site(exit_site),
        exit_note=heap.text(exit_note),
        program=heap.program(),
        finalizing=bool(flags & layout.FINALIZING),
        probe_errors=heap.errors(),
        non_finite=non_finite,
        bad_losses=layout.NUMERICS.unpack_from(data, layout.NUMERICS_OFFSET)[1],
        phases=_read_phases(data),
        checksums=_read_checksums(data, heap),
        held=heap.held(),
        **read_stages(data, heap),
    )
    return PageContent(
        pid=pid,
        rank=rank,
        started_at=started / 1e9,
        progress=progress,
        exceptions=exceptions,
        stacks_on_signal=bool(flags & layout.STACKS_ON_SIGNAL),
        recorder_served=bool(flags & layout.RECORDER_SERVED),
        trackers=heap.trackers(),
    )


def _read_calls(data: bytes, total: int, heap: Heap, newest: int) -> tuple[Call, ...]:
    shares = {(heap.text(each.name), each.seq): each for each in exchanges_of(data)}
    calls = []
    for index in range(max(0, total - min(newest, layout.RING_SLOTS)), total):
        at = layout.RING_OFFSET + (index % layout.RING_SLOTS) * layout.CALL.size
        (entered, left, seq, step, op, group, site, thread, peer, numel, dtype, note, depth, bits, _) = (
            layout.CALL.unpack_from(data, at)
        )
        name = heap.text(group)
        exchange = shares.get((name, seq)) if shares and seq else None
        calls.append(
            Call(
                index=index,
                op=heap.text(op),
                group=name,
                seq=seq,
                thread=thread,
                depth=depth,
                entered_at=entered / 1e9,
                left_at=left / 1e9 if left else None,
                failed=bool(bits & layout.FAILED),
                step=step,
                peer=peer,
                numel=numel,
                dtype=heap.text(dtype),
                site=heap.site(site),
                through=heap.through(site),
                note=heap.text(note),
                sends=exchange.sends if exchange is not None else (),
                receives=exchange.receives if exchange is not None else (),
            )
        )
    return tuple(calls)


def _read_loader(data: bytes, heap: Heap) -> Loader | None:
    batches, number, workers, site, state, changed = layout.LOADER.unpack_from(data, layout.LOADER_OFFSET)
    if changed == 0:
        return None
    return Loader(
        number=number,
        batches=batches,
        exhausted=state == layout.LOADER_EXHAUSTED,
        workers=workers,
        in_next=state == layout.LOADER_WAITING,
        changed_at=changed / 1e9,
        site=heap.site(site),
        length=_loader_run(data, number)[1],
    )


def _read_earlier_loaders(data: bytes, heap: Heap) -> tuple[LoaderRun, ...]:
    """The passes before the one that goes on, as far back as there is room for them."""
    _, now, *_, changed = layout.LOADER.unpack_from(data, layout.LOADER_OFFSET)
    found = []
    for number in range(max(0, now - layout.LOADER_SLOTS + 1), now if changed else 0):
        batches, length, stored, site = _loader_run(data, number)
        if stored == number + 1:
            found.append(LoaderRun(number=number, batches=batches, length=length, site=heap.site(site)))
    return tuple(found)


def _loader_run(data: bytes, number: int) -> tuple[int, int, int, int]:
    batches, length, stored, site = layout.LOADER_RUN.unpack_from(data, layout.loader_slot(number))
    return (batches, length, stored, site) if stored == number + 1 else (0, -1, 0, 0)


def _read_phases(data: bytes) -> Phases | None:
    since, until, step, *seconds = layout.PHASES.unpack_from(data, layout.PHASES_OFFSET)
    return Phases(since / 1e9, until / 1e9, step, *seconds) if since else None


def _read_checksums(data: bytes, heap: Heap) -> tuple[Checksum, ...]:
    found = []
    for slot in range(layout.CHECKSUM_SLOTS):
        at = layout.CHECKSUMS_OFFSET + slot * layout.CHECKSUM.size
        step, value, group, name = layout.CHECKSUM.unpack_from(data, at)
        if step:
            finite = value if math.isfinite(value) else None  # JSON has no word for what is not
            found.append(Checksum(step=step, value=finite, group=heap.text(group), name=heap.text(name)))
    return tuple(sorted(found, key=lambda each: each.step))


def ask_listener(path: Path, *, at: float, timeout_s: float = 1.0) -> tuple[tuple[RaisedException, ...], StackSample]:
    """Exceptions being handled, and Python stacks, from a thread inside the rank; needs the rank's GIL.

    Raises EvidenceError where no answer comes in time.
    """
    chunks: list[bytes] = []
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            while (chunk := connection.recv(1 << 16)) and sum(map(len, chunks)) < _MAX_LISTENER_BYTES:
                chunks.append(chunk)
    except TimeoutError as error:
        raise EvidenceError(f"no answer within {timeout_s:g} s: the interpreter lock may be held") from error
    except OSError as error:
        raise EvidenceError(f"the listener does not answer: {error}") from error
    exceptions, threads = [], []
    for record in b"".join(chunks).decode("utf-8", "replace").split(RECORD):
        kind, thread, name, message, *rest = (*record.split(layout.SEPARATOR), "", "", "", "")[
            : max(4, record.count(layout.SEPARATOR) + 1)
        ]
        frames = frames_of(rest)
        if kind == "X":
            exceptions.append(RaisedException(name, mask_text(message), None, frames, source="pending", thread=thread))
        elif kind == "C" and exceptions:
            earlier = EarlierException(name, mask_text(message), frames, led=thread)
            exceptions[-1] = replace(exceptions[-1], chain=(*exceptions[-1].chain, earlier))
        elif kind == "S":
            threads.append(Thread(tid=0, name=thread, main=thread == "MainThread", frames=frames))
    return tuple(exceptions), StackSample(at=at, threads=tuple(threads), source="listener")
