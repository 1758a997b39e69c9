"""Which text a run is trained on: the files, what identifies their content, and the ranges that are encoded."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rankscope.errors import DataError, UsageError
from rankscope.train.config import DataConfig
from rankscope.train.data.fingerprints import Fingerprints
from rankscope.train.data.hub import HubDataset, open_hub_dataset

Kind = Literal["text", "jsonl", "parquet", "hf"]
PART_BYTES = 1 << 20
"""Text of one piece of work."""
_LONGEST_SEARCH = 8 << 20
_LINE_START = re.compile(rb"\n(?=[!-~])")
_WORD_START = re.compile(rb" (?=[!-~])")
_PACKED = (".gz", ".zst", ".bz2", ".xz", ".zip")


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a text or JSON-lines file, row groups of a parquet file."""

    path: str
    begin: int
    end: int
    ends_document: bool = True
    """False where a text file goes on in the next range."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker encodes at a time."""

    ranges: tuple[Range, ...]
    text_bytes: int
    """About; for progress."""


@dataclass(frozen=True, slots=True)
class Corpus:
    kind: Kind
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    label: str
    """For people."""
    text_field: str
    hub: HubDataset | None = None
    """Where the text is not in files of ours."""

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes)


def find_corpus(data: DataConfig) -> Corpus:
    """The files, in a fixed order. Raises DataError where there are none."""
    if data.source == "builtin":
        paths = _standard_library()
        return Corpus("text", paths, _sizes(paths), "Python's standard library", data.text_field)
    if data.source == "hf":
        hub = open_hub_dataset(data)
        return Corpus("hf", (), (hub.text_bytes,), hub.label, data.text_field, hub)
    if data.source == "random":
        raise UsageError("data.source 'random' makes its tokens up while training: there is nothing to prepare")
    paths = _matching(data.paths)
    sizes = _sizes(paths)
    label = paths[0] if len(paths) == 1 else f"{len(paths)} {data.source} files"
    if not any(sizes):
        raise DataError(f"the dataset is empty: {label} holds no text")
    return Corpus(data.source, paths, sizes, label, data.text_field)


def fingerprint(corpus: Corpus, known: Fingerprints) -> str:
    """Of the content: other names or places of the same files give the same one."""
    if corpus.hub is not None:
        return hashlib.sha256(f"hf {corpus.text_field} {corpus.hub.fingerprint}".encode()).hexdigest()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        contents = list(threads.map(known.of, corpus.paths))
    known.save()
    whole = f"{corpus.kind} {corpus.text_field if corpus.kind != 'text' else ''} {' '.join(contents)}"
    return hashlib.sha256(whole.encode()).hexdigest()


def parts(corpus: Corpus) -> Iterator[Part]:
    """All of the corpus in order, in pieces of work of about a mebibyte."""
    ranges: list[Range] = []
    held = 0
    for each, text_bytes in _ranges(corpus):
        ranges.append(each)
        held += text_bytes
        if held >= PART_BYTES:
            yield Part(tuple(ranges), held)
            ranges, held = [], 0
    if ranges:
        yield Part(tuple(ranges), held)


def _ranges(corpus: Corpus) -> Iterator[tuple[Range, int]]:
    for path, size in zip(corpus.paths, corpus.sizes, strict=True):
        if corpus.kind == "parquet":
            yield from _row_groups(path, size)
        else:
            begin = 0
            while begin < size:
                end = _cut(path, begin + PART_BYTES, size, corpus.kind)
                yield Range(path, begin, end, end == size), end - begin
                begin = end


def _cut(path: str, wanted: int, size: int, kind: Kind) -> int:
    """The first place from `wanted` on where a file may be cut. Text is cut between lines, where all usual tokenizers
    cut too; a line without end is cut before a word."""
    if wanted >= size:
        return size
    with open(path, "rb") as file:
        if kind == "jsonl":
            file.seek(wanted - 1)
            file.readline()
            return file.tell()
        file.seek(wanted - 1)
        window = file.read(64 << 10)
        match = _LINE_START.search(window)
        if match is None:
            window += file.read(_LONGEST_SEARCH)
            match = _LINE_START.search(window)
    if match is not None:
        return wanted + match.start()
    match = _WORD_START.search(window, 1)
    if match is not None:
        return wanted - 1 + match.start()
    if wanted - 1 + len(window) >= size:
        return size
    # Nothing to cut at for 8 MiB: between two characters, then.
    inside = next((i for i in range(len(window) - 4, len(window)) if window[i] & 0xC0 != 0x80), len(window))
    return wanted - 1 + inside


def _row_groups(path: str, size: int) -> Iterator[tuple[Range, int]]:
    from rankscope.train.data.reading import open_parquet

    groups = open_parquet(path).num_row_groups
    for group in range(groups):
        yield Range(path, group, group + 1), max(1, size // groups)


def _matching(patterns: tuple[str, ...]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for pattern in patterns:
        expanded = os.path.expanduser(pattern)
        if os.path.isdir(expanded):
            raise DataError(f"data.paths: '{pattern}' is a folder; write which files in it, as in '{pattern}/**/*.txt'")
        matches = sorted(glob.glob(expanded, recursive=True)) if not os.path.exists(expanded) else [expanded]
        files = [path for path in matches if os.path.isfile(path)]
        if not files:
            raise DataError(f"data.paths: no file is called '{pattern}' (current folder: {os.getcwd()})")
        for path in files:
            if path.endswith(_PACKED):
                raise DataError(f"data.paths: '{path}' is compressed; unpack it first")
            found[path] = None
    return tuple(found)


def _sizes(paths: tuple[str, ...]) -> tuple[int, ...]:
    try:
        return tuple(os.stat(path).st_size for path in paths)
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error


def _standard_library() -> tuple[str, ...]:
    """Sources that are UTF-8, which is nearly all; what is installed beside them is left out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(set(inner) - {"site-packages", "dist-packages", "__pycache__"})
        for path in (os.path.join(folder, name) for name in sorted(names) if name.endswith(".py")):
            try:
                Path(path).read_bytes().decode("utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            found.append(path)
    if not found:
        raise DataError(f"data.source 'builtin': this Python has no sources under {root}; name files with data.paths")
    return tuple(found)
