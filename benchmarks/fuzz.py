"""Feeds every reader of other people's bytes with spoiled copies of real ones, a million of them if you like.

    python benchmarks/fuzz.py --inputs 1000000 --seed 1 --out fuzz.json

An input is a recorded or made file, page, answer or word of another node: bytes flipped, cut, doubled or swapped with
those of another one, or a value in its middle replaced by one that nobody expects. A reader may refuse it. A traceback,
a crash of the interpreter, more than five seconds (not counted while other programs have the processors) or more than
500 MB for one input is a fault: the input is kept, and its place is printed. Inputs are read in batches, each in a
process of its own, so that a crash costs one batch.

`--pause-while FILE` reads nothing while that file is there. With `--out` the counts are written after every batch, and
a run that was ended goes on where it was. `--words FILE` prints them as docs/reliability.md has them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz_inputs import NAMES, seeds, spoil
from fuzz_readers import READERS, Reader, read

__all__ = ["NAMES", "read", "seeds", "spoil"]

SLOW_S = 5.0
STUCK_S = 20.0
"""A reader that does not come back from C code, where no alarm is heard, is killed."""
LARGE = 500 << 20
BATCH = 500
KEPT_FAULTS = 40
_PROGRESS = struct.Struct("<Qd")
_PR_SET_PDEATHSIG = 1


class TooSlow(BaseException):
    """Not an Exception: no reader may take it for one of its own."""


@dataclass(slots=True)
class Tally:
    """What was read so far."""

    batches: int = 0
    inputs: int = 0
    refused: int = 0
    crashes: int = 0
    slowest_s: float = 0.0
    largest_mb: int = 0
    seconds: float = 0.0
    readers: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, str]] = field(default_factory=list)

    def add(self, told: dict[str, Any]) -> None:
        self.inputs += int(told["inputs"])
        self.refused += int(told["refused"])
        self.slowest_s = max(self.slowest_s, float(told["slowest_s"]))
        self.largest_mb = max(self.largest_mb, int(told["largest_mb"]))
        self.readers.update(told["readers"])
        self.faults += told["faults"]


def main() -> int:
    """Exit code 1 where a fault was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", choices=sorted(READERS), help="this one alone")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "rankscope-fuzz-faults")
    parser.add_argument("--pause-while", type=Path)
    parser.add_argument("--words", type=Path, help="what was written there, in words, and nothing else")
    chosen = parser.parse_args()
    if chosen.words is not None:
        print(in_words(resumed(chosen.words)))
        return 0
    tally = resumed(chosen.out)
    readers = [READERS[chosen.reader]] if chosen.reader else list(READERS.values())
    for reader in readers:
        reader.input(random.Random(0))  # what inputs are made from is read once, not again in every batch
    folder = Path(tempfile.mkdtemp(prefix="rankscope-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    begun, before = time.monotonic(), tally.seconds
    try:
        while tally.inputs < chosen.inputs and time.monotonic() - begun < chosen.seconds:
            while chosen.pause_while is not None and chosen.pause_while.exists():
                time.sleep(1.0)
            known = len(tally.faults)
            one_batch(f"{chosen.seed}/{tally.batches}", readers, folder, chosen.keep, tally)
            tally.batches += 1
            tally.seconds = before + time.monotonic() - begun
            for fault in tally.faults[known:]:
                print(f"{fault['reader']}: {fault['kept']}\n{fault['what']}", flush=True)
            if chosen.out is not None:
                write(chosen.out, tally)
            if len(tally.faults) > KEPT_FAULTS:
                print("too many faults: mend these first")
                break
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{tally.inputs} inputs, {tally.refused} of them refused, {len(tally.faults)} faults; the slowest took "
        f"{tally.slowest_s:.2f} s, the largest {tally.largest_mb} MB"
    )
    return int(bool(tally.faults))


def in_words(tally: Tally) -> str:
    faults = ", ".join(sorted({fault["reader"] for fault in tally.faults})) or "none"
    readers = ", ".join(f"{name} {count:,}" for name, count in tally.readers.most_common())
    return (
        f"{tally.inputs:,} inputs, {tally.refused:,} of them refused; faults: {faults}. The slowest took "
        f"{tally.slowest_s:.1f} s, the largest {tally.largest_mb} MB.\n\nBy reader: {readers}."
    )


def resumed(out: Path | None) -> Tally:
    if out is None or not out.exists():
        return Tally()
    told = json.loads(out.read_bytes())
    return Tally(**{**told, "readers": Counter(told["readers"])})


def write(out: Path, tally: Tally) -> None:
    told = {name: getattr(tally, name) for name in Tally.__slots__}
    new = out.with_suffix(".new")
    new.write_text(json.dumps({**told, "readers": dict(sorted(tally.readers.items()))}, indent=1) + "\n")
    new.replace(out)


def one_batch(name: str, readers: list[Reader], folder: Path, keep: Path, tally: Tally) -> None:
    """In a process of its own; where that dies, the input it died of is the fault, and the rest is read by the next."""
    first = 0
    while first < BATCH:
        progress = mmap.mmap(-1, _PROGRESS.size)
        answer = folder / "answer"
        answer.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                answer.write_text(json.dumps(read_batch(name, first, readers, folder, keep, progress)))
                code = 0
            except BaseException:  # noqa: BLE001  a child must not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(code)
        status = watch(child, progress)
        at, _ = _PROGRESS.unpack(progress[:])
        if status == 0 and answer.exists():
            tally.add(json.loads(answer.read_bytes()))
            return
        reader, data = made(name, at, readers)
        what = f"the reader died: {os.waitstatus_to_exitcode(status)}" if status is not None else "it never came back"
        tally.faults.append(kept(keep, reader, f"{name}/{at}", data, what))
        tally.crashes += 1
        tally.inputs += at - first + 1
        first = at + 1


def watch(child: int, progress: mmap.mmap) -> int | None:
    """The child's end; None where one input took so long that it was killed."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        _, since = _PROGRESS.unpack(progress[:])
        if since and time.monotonic() - since > STUCK_S:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.01)


def made(name: str, at: int, readers: list[Reader]) -> tuple[Reader, bytes]:
    """The input of that number, always the same."""
    chance = random.Random(f"{name}/{at}")
    reader = chance.choices(readers, [each.weight for each in readers])[0]
    return reader, reader.input(chance)


def read_batch(
    name: str, first: int, readers: list[Reader], folder: Path, keep: Path, progress: mmap.mmap
) -> dict[str, object]:
    count: Counter[str] = Counter()
    faults: list[dict[str, str]] = []
    refused, slowest, largest = 0, 0.0, 0
    for at in range(first, BATCH):
        reader, data = made(name, at, readers)
        before = peak_from_here()
        clock = Clock()
        progress[:] = _PROGRESS.pack(at, time.monotonic())
        fault: str | None = None
        signal.signal(signal.SIGALRM, clock.rings)
        signal.setitimer(signal.ITIMER_REAL, SLOW_S)
        try:
            refused += reader.read(data, folder)
        except TooSlow as error:
            fault = f"took more than {SLOW_S:.0f} s\n{''.join(traceback.format_tb(error.__traceback__)[-6:])}"
        except Exception:  # noqa: BLE001  that is what is looked for
            fault = traceback.format_exc()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        slowest = max(slowest, clock.taken_s())
        grown = max(peak()[0] - before[0], peak()[1] - before[1])
        largest = max(largest, grown >> 20)
        if fault is None and grown > LARGE:
            fault = f"took {grown >> 20} MB"
        if fault is not None:
            faults.append(kept(keep, reader, f"{name}/{at}", data, fault))
        count[reader.name] += 1
    return {
        "inputs": BATCH - first,
        "refused": refused,
        "slowest_s": round(slowest, 3),
        "largest_mb": largest,
        "readers": count,
        "faults": faults,
    }


class Clock:
    """Since it was made, less the time in which this process could have run and others had the processors."""

    def __init__(self) -> None:
        self._begun = time.monotonic() - _kept_waiting_s()

    def taken_s(self) -> float:
        return time.monotonic() - _kept_waiting_s() - self._begun

    def rings(self, _number: int, _frame: FrameType | None) -> None:
        left = SLOW_S - self.taken_s()
        if left <= 0:
            raise TooSlow
        signal.setitimer(signal.ITIMER_REAL, left + 0.001)


def _kept_waiting_s() -> float:
    """0 where the kernel does not count it."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def peak_from_here() -> tuple[int, int]:
    """As `peak`, where this process's own begins again at what it has now."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    return peak()


def peak() -> tuple[int, int]:
    """Of this process, and of the largest of those that it had read for it."""
    with open("/proc/self/status", "rb") as file:
        own = next(int(line.split()[1]) << 10 for line in file if line.startswith(b"VmHWM:"))
    return own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10


def kept(keep: Path, reader: Reader, number: str, data: bytes, what: str) -> dict[str, str]:
    keep.mkdir(parents=True, exist_ok=True)
    path = keep / f"{reader.name.replace(' ', '_')}-{number.replace('/', '-')}"
    path.write_bytes(data)
    return {"reader": reader.name, "input": number, "kept": str(path), "what": what[-2000:]}


if __name__ == "__main__":
    sys.exit(main())
