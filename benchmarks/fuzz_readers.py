"""Every door by which bytes of others come in: the function behind it, inputs for it, and what it may refuse with."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from fuzz_inputs import (
    NAMES,
    answers,
    as_json,
    as_pickle,
    dumps,
    error_files,
    large_dumps,
    large_recordings,
    large_texts,
    recordings,
    seeds,
    spoil,
    spoiled_or_warped,
    stacks,
    texts,
)
from fuzz_parcels import a_parcel, of_parcels
from rankscope.diagnosis.codec import verdict_from_json, verdict_to_json
from rankscope.errors import EvidenceError, RankscopeError
from rankscope.evidence.fingerprints import read_fingerprints
from rankscope.evidence.flight import parse_flight_json, parse_flight_pickle
from rankscope.evidence.kernel import telling_lines
from rankscope.evidence.model import Evidence
from rankscope.evidence.nan_dump import is_nan_dump, read_nan_dump
from rankscope.evidence.pages import read_heartbeat, read_page
from rankscope.evidence.ras_text import parse_answer
from rankscope.evidence.readers.columns import KindTable
from rankscope.evidence.readers.dumps import rank_dumps
from rankscope.evidence.readers.error_file import looks_like_error_file, read_error_file
from rankscope.evidence.readers.gather import gather
from rankscope.evidence.readers.in_child import bounded_memory
from rankscope.evidence.readers.kinds import kind_of
from rankscope.evidence.readers.log import LogReader
from rankscope.evidence.readers.py_spy_dump import read_py_spy_json, read_py_spy_text
from rankscope.evidence.readers.record import read_json, read_pickle
from rankscope.evidence.stacks import parse_faulthandler, parse_py_spy, stack_of_fatal_error
from rankscope.evidence.stages import StageReader
from rankscope.evidence.store import load_evidence
from rankscope.evidence.tracebacks import find_tracebacks
from rankscope.launch.nodes import words
from rankscope.launch.nodes.bounds import TooMuch
from rankscope.launch.nodes.seal import Seal
from rankscope.mask import mask_text
from rankscope.mask.code import mask_code
from rankscope.probe.page import HEAP_OFFSET, MAGIC, Page
from rankscope.report.conclude import conclude
from rankscope.terminal_text import harmless, harmless_bytes, without_escapes

AT = 1.8e9
"""A time, where a reader wants one."""


@dataclass(frozen=True, slots=True)
class Reader:
    name: str
    weight: float
    """How often it is chosen: cheap ones more often than dear ones."""
    input: Callable[[random.Random], bytes]
    call: Callable[[bytes, Path], object]
    refuses: tuple[type[Exception], ...] = (RankscopeError,)

    def read(self, data: bytes, folder: Path) -> bool:
        """Whether it was refused. Raises whatever else the reader does."""
        try:
            self.call(data, folder)
        except self.refuses:
            return True
        return False


def of_bytes(inputs: Callable[[], Sequence[bytes]]) -> Callable[[random.Random], bytes]:
    return lambda chance: spoil(chance.choice(inputs()), chance.choice(inputs()), chance)


def of_values(documents: Callable[[], list[Any]], encode: Callable[[Any], bytes]) -> Callable[[random.Random], bytes]:
    return lambda chance: spoiled_or_warped(documents(), encode, chance)


def a_record(read_it: Callable[[bytes, KindTable], Any]) -> Callable[[bytes, Path], object]:
    """The columns of one dump, and what becomes of them beside another one."""

    def call(data: bytes, _folder: Path) -> None:
        table = KindTable()
        whole = read_pickle(as_pickle(dumps()[0]), table)
        with bounded_memory(len(data)):  # as in the process that reads dumps
            columns = read_it(data, table)
        rank_dumps(["trace_rank_0", "trace_rank_1"], [whole, columns], table)

    return call


def a_log(data: bytes, _folder: Path) -> None:
    reader = LogReader()
    reader.read(io.BytesIO(data), "rank1.log", 1 if data[:1] == b"[" else None, AT)
    reader.finish()


def an_error_file(data: bytes, _folder: Path) -> None:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EvidenceError("is damaged") from error
    if isinstance(document, dict) and looks_like_error_file(document):
        read_error_file(document)


def some_stacks(data: bytes, _folder: Path) -> None:
    with contextlib.suppress(ValueError):  # which its caller expects
        parse_py_spy(data, 41, "/home/me")
    read_py_spy_json(data, AT)


def some_text(data: bytes, _folder: Path) -> None:
    """All that take lines or text of a rank."""
    text = data.decode("utf-8", "replace")
    find_tracebacks(text.splitlines())
    parse_faulthandler(text)
    stack_of_fatal_error(text)
    harmless(text)
    without_escapes(text)
    harmless_bytes(data)
    kind_of(data)
    telling_lines(data.split(b"\n"), 0.0, 1.0)


def a_page(data: bytes, folder: Path) -> None:
    """As its launcher reads it: a wild write of the program may hit its page."""
    path = folder / "0-1.page"
    path.write_bytes(data)
    refused: RankscopeError | None = None
    for look in (read_heartbeat, read_fingerprints, lambda path: StageReader(path).read(), read_page):
        try:
            look(path)
        except RankscopeError as error:
            refused = error
    if refused is not None:
        raise refused


def of_a_page(chance: random.Random) -> bytes:
    """Spoiled where something stands: most of a page is empty."""
    page = bytearray(pages()[0])
    for _ in range(chance.randint(1, 8)):
        begin, end = chance.choice(((0, 4096), (4096, 4096 + 1200), (HEAP_OFFSET, HEAP_OFFSET + 900), (0, len(page))))
        at = chance.randrange(begin, end)
        match chance.randrange(4):
            case 0:
                page[at] = chance.randrange(256)
            case 1:
                page[at : at + 8] = chance.choice([b"\xff" * 8, bytes(8), bytes([255] * 7 + [127]), b"\1" + bytes(7)])
            case 2:
                page[at : at + 4] = chance.choice([b"\xff" * 4, bytes(4), chance.randbytes(4)])
            case _:
                other = chance.randrange(begin, end)
                page[at : at + 32] = page[other : other + 32]
    page[:8] = MAGIC if chance.random() < 0.98 else page[:8]
    del page[len(pages()[0]) :]
    return bytes(page) if chance.random() < 0.97 else bytes(page[: chance.randrange(len(page))])


@cache
def pages() -> tuple[bytes]:
    folder = tempfile.mkdtemp(prefix="rankscope-fuzz-page-")
    try:
        page = Page(os.path.join(folder, "0-1.page"), 0)
        site = page.site([("/job/train.py", 7, "main")], "backward")
        page.group("0", "default_pg", [0, 1])
        page.program(("/job",))
        page.exception(
            "ValueError", "no", "MainThread", [("/job/train.py", 7, "main")], [("cause", "KeyError", "x", [])]
        )
        page.non_finite("loss", 3, "nan", ["w"], 1, local=True, detail="first", frames=[("/job/train.py", 7, "main")])
        page.error("probe: nothing")
        page.stage("loading")
        page.checksum(3, 1.5, "0", "weights")
        page.loader_begun(0, 10, site)
        page.loader(3, 0, 2, site, 1)
        page.step()
        page.leaving(site, "exit")
        for number in range(6):
            left = page.enter(page.text("all_reduce"), page.text("0"), number, site, 1, 0, -1, 4, 0, 0)
            if number < 5:
                page.leave(left, False)
        return (Path(page.path).read_bytes(),)
    finally:
        shutil.rmtree(folder)


@cache
def evidence_json() -> list[bytes]:
    return [as_json(each) for each in recordings()]


@cache
def verdicts() -> list[Any]:
    looks = [msgspec.json.decode(data, type=Evidence) for data in evidence_json()[:12]]
    return [json.loads(verdict_to_json(conclude(look))) for look in looks]


def evidence_file(data: bytes, folder: Path) -> None:
    path = folder / "evidence.json"
    path.write_bytes(data)
    load_evidence(path)


def evidence_and_rules(data: bytes, folder: Path) -> None:
    """The dearest: every rule over evidence that no job could leave."""
    path = folder / "evidence.json"
    path.write_bytes(data)
    conclude(load_evidence(path))


@cache
def nan_incidents() -> list[Any]:
    tensor = {"name": "layers.0.weight", "nan": 3, "inf": 0}
    first = {
        "what": "output",
        "module": "layers.0",
        "kind": "Linear",
        "samples": [1],
        "frames": [["/job/a.py", 3, "f"]],
    }
    rank = {"rank": 0, "bad_parameters": [tensor], "bad_gradients": [], "bad_inputs": [], "first": first, "samples": []}
    return [{"step": 7, "kind": "parameter", "origins": [0], "ranks": [rank, {**rank, "rank": 1}]}]


def as_safetensors(incident: Any) -> bytes:
    header = as_json({"__metadata__": {"incident": json.dumps(incident)}})
    return len(header).to_bytes(8, "little") + header


def nan_file(data: bytes, folder: Path) -> None:
    path = folder / "nan_step_7"
    path.write_bytes(data)
    if is_nan_dump(path):
        conclude(read_nan_dump(path))


def of_nan_files(chance: random.Random) -> bytes:
    encode = as_safetensors if chance.random() < 0.6 else lambda incident: as_pickle({"incident": incident})
    return spoiled_or_warped(nan_incidents(), encode, chance)


@cache
def spoken() -> list[Any]:
    hello = [0, "node-0", "10.0.0.1", 4242, [0, 1], 77, True]
    named = dict(zip(("node", "host", "address", "port", "ranks", "pid", "holds_store"), hello, strict=True))
    beat = {"number": 3, "at": AT, "still": True, "wants": 1, "failed": False, "ended": "", "numbers": 0}
    ruling = {"number": 1, "verdict": json.dumps(verdicts()[0]), "stop": True, "reason": "stopped", "signal": None}
    return [named, beat, {"number": 1, "trigger": "stall"}, ruling]


def as_word(document: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(document)
    except (OverflowError, UnicodeEncodeError):  # what no such word can hold
        return b"\xc1"


def a_word(data: bytes, _folder: Path) -> None:
    """What another launcher says, or somebody who is none."""
    said = Seal(b"key").open("hello/0", b"\0" + data).content
    Seal(b"key").open("hello/0", data)
    for kind in (words.Hello, words.Beat, words.Call, words.Ruling):
        try:
            word = words.decode(said, kind)  # type: ignore[type-var]
        except words.Nonsense:
            continue
        if isinstance(word, words.Hello):
            words.sane_hello(word, 0, 2)
        if isinstance(word, words.Ruling):
            word.as_event("node-1", verified=False)


def as_ruling(verdict: Any) -> bytes:
    return words.encode(words.Ruling(1, json.dumps(verdict).encode(), True, "hang"))


def of_words(chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return spoiled_or_warped(verdicts(), as_ruling, chance)
    return spoiled_or_warped(spoken(), as_word, chance)


def any_file(data: bytes, folder: Path) -> None:
    """The whole way of `rankscope diagnose FILE`."""
    path = folder / NAMES[sum(data[:64]) % len(NAMES)]
    path.write_bytes(data)
    if is_nan_dump(path):
        conclude(read_nan_dump(path))
    conclude(gather([str(path)]))


def a_run_folder(data: bytes, folder: Path) -> None:
    """`rankscope diagnose FOLDER` of a run, one of whose files is spoiled."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    for name, content in (("run.json", b'{"command": ["train.py"]}'), ("verdict.json", as_json(verdicts()[0]))):
        (run / name).write_bytes(content)
    (run / ("verdict.json" if len(data) % 3 else "run.json")).write_bytes(data)
    gather([str(run)])


def masks(data: bytes, _folder: Path) -> None:
    text = data.decode("utf-8", "replace")
    mask_text(text)
    mask_code(text)


READERS = {
    reader.name: reader
    for reader in (
        Reader("dump, pickle", 14, of_values(dumps, as_pickle), a_record(read_pickle)),
        Reader("dump, JSON", 10, of_values(dumps, as_json), a_record(read_json)),
        Reader("flight record, pickle", 10, of_values(dumps, as_pickle), lambda data, _: parse_flight_pickle(data)),
        Reader("flight record, JSON", 8, of_values(dumps, as_json), lambda data, _: parse_flight_json(data)),
        Reader("log", 5, of_bytes(texts), a_log),
        Reader("text of ranks", 6, of_bytes(texts), some_text),
        Reader("masks", 1, of_bytes(texts), masks),
        Reader(
            "stacks, text", 6, of_bytes(texts), lambda data, _: read_py_spy_text(data.decode("utf-8", "replace"), AT)
        ),
        Reader("stacks, JSON", 8, of_values(stacks, as_json), some_stacks),
        Reader("error file", 8, of_values(error_files, as_json), an_error_file),
        Reader(
            "NCCL's answer", 4, of_bytes(answers), lambda data, _: parse_answer(data.decode("utf-8", "replace"), AT)
        ),
        Reader("verdict", 5, of_values(verdicts, as_json), lambda data, _: verdict_from_json(data)),
        Reader("word of a node", 10, of_words, a_word, (words.Nonsense,)),
        Reader("parcel of a node", 0.4, of_parcels, a_parcel, (TooMuch,)),
        Reader("page of a rank", 0.7, of_a_page, a_page),
        Reader("non-finite step", 0.4, of_nan_files, nan_file),
        Reader("evidence", 0.5, of_values(recordings, as_json), evidence_file),
        Reader("evidence and rules", 0.4, of_values(recordings, as_json), evidence_and_rules),
        Reader("folder of a run", 0.5, of_values(verdicts, as_json), a_run_folder),
        Reader("any file", 0.3, of_bytes(seeds), any_file),
        Reader("large dump", 0.3, of_values(large_dumps, as_pickle), a_record(read_pickle)),
        Reader("large log", 0.02, of_bytes(large_texts), a_log),
        Reader("large text of ranks", 0.02, of_bytes(large_texts), some_text),
        Reader("large evidence and rules", 0.03, of_values(large_recordings, as_json), evidence_and_rules),
    )
}


def read(path: Path) -> str | None:
    """The traceback, where there is one that no user should see."""
    try:
        if is_nan_dump(path):
            conclude(read_nan_dump(path))
        conclude(gather([str(path)]))
    except RankscopeError:
        return None
    except Exception:  # noqa: BLE001  that is what is looked for
        return traceback.format_exc()
    return None
