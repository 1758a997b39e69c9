"""From text to a prepared dataset, built once and shared by all ranks of all jobs that ask for the same."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rankscope.errors import DamagedDataset, DataError
from rankscope.train.config import RunConfig, embedding_rows
from rankscope.train.data import corpus as corpora
from rankscope.train.data.corpus import Corpus
from rankscope.train.data.fingerprints import Fingerprints
from rankscope.train.data.prepared import (
    BLOCK_BYTES,
    FORM,
    MANIFEST,
    TOKENIZER,
    TOKENS,
    Manifest,
    PreparedDataset,
    encode_manifest,
    open_verified,
)
from rankscope.train.data.storing import exclusive, is_free, storing, sync_folder
from rankscope.train.data.tokenizer import TokenizerChoice, choose_tokenizer

Say = Callable[[str], None]
Progress = Callable[[int, int, int], None]
"""Told of text bytes done, text bytes in all, tokens so far."""


FINGERPRINTS = "fingerprints.json"


def _silent(_done: int, _total: int, _tokens: int) -> None:
    return


@dataclass(frozen=True, slots=True)
class _Plan:
    corpus: Corpus
    tokenizer: TokenizerChoice
    context_length: int
    lookahead: int
    samples: int | None
    """At most; None: all."""
    inputs: dict[str, Any]
    key: str
    workers: int

    @property
    def most_tokens(self) -> int | None:
        return None if self.samples is None else self.samples * self.context_length + self.lookahead

    @property
    def dtype(self) -> Literal["uint16", "uint32"]:
        return "uint16" if self.tokenizer.vocab_size <= 1 << 16 else "uint32"


def prepare(config: RunConfig, say: Say, progress: Progress = _silent) -> PreparedDataset:
    """The dataset of this configuration: found, or built under a lock while other jobs wait. `say` hears what was
    decided and why, a line at a time. Raises DataError, UsageError and NoRoom, each with one line for people."""
    plan = _plan(config, say)
    cache = Path(config.data.cache_dir)
    folder = cache / plan.key
    with contextlib.suppress(DamagedDataset):
        if folder.exists():
            return _found(folder, say)
    with exclusive(cache / f".{plan.key}.lock", "preparing this dataset", say):
        _sweep(cache, plan.key)
        known = Fingerprints(cache / FINGERPRINTS)
        if folder.exists():
            try:
                return _found(folder, say)
            except DamagedDataset as damage:
                say(f"{damage}: building it again")
                with storing(cache):
                    shutil.rmtree(folder)
        return _build(plan, folder, known, say, progress)


def _plan(config: RunConfig, say: Say) -> _Plan:
    data, model = config.data, config.model
    corpus = corpora.find_corpus(data)
    dataset = corpora.fingerprint(corpus, Fingerprints(Path(data.cache_dir) / FINGERPRINTS))
    tokenizer = choose_tokenizer(data, dataset, lambda size: _some_text(corpus, size), say)
    embedding_rows(model, tokenizer.vocab_size)
    samples = config.data_sampling.n_samples
    inputs = {
        "form": FORM,
        "tokenizer": tokenizer.fingerprint,
        "dataset": dataset,
        "context_length": model.context_length,
        "lookahead": model.multi_token_heads,
        "n_samples": samples,
    }
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:20]
    workers = data.workers or len(os.sched_getaffinity(0))
    return _Plan(corpus, tokenizer, model.context_length, model.multi_token_heads, samples, inputs, key, workers)


def _found(folder: Path, say: Say) -> PreparedDataset:
    prepared = open_verified(folder)
    say(f"dataset {folder}: {_counts(prepared.manifest)}, prepared before, checksums right")
    return prepared


def _build(plan: _Plan, folder: Path, known: Fingerprints, say: Say, progress: Progress) -> PreparedDataset:
    text = plan.corpus.total_bytes
    say(
        f"preparing {plan.corpus.label} ({text / 1e6:,.1f} MB) with the tokenizer {plan.tokenizer.label} in "
        f"{plan.workers} processes"
    )
    building = folder.with_name(f".{plan.key}.building-{os.getpid()}")
    try:
        with storing(folder.parent):
            building.mkdir(parents=True)
            manifest = _write(plan, building, progress)
            if corpora.fingerprint(plan.corpus, known) != plan.inputs["dataset"]:
                raise DataError(f"{plan.corpus.label} changed while it was read; wait until it is complete")
            _write_small(building / MANIFEST, encode_manifest(manifest))
            sync_folder(building)
            building.rename(folder)
            sync_folder(folder.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    say(f"dataset {folder}: {_counts(manifest)}")
    return PreparedDataset(folder, manifest)


def _write(plan: _Plan, building: Path, progress: Progress) -> Manifest:
    if plan.tokenizer.content:
        _write_small(building / TOKENIZER, plan.tokenizer.content.encode())
    writer = _TokenWriter(building / TOKENS, 2 if plan.dtype == "uint16" else 4, plan.most_tokens)
    documents = text_bytes = 0
    with writer:
        for answer in _answers(plan):
            writer.add(answer.tokens)
            documents += answer.documents
            text_bytes += answer.text_bytes
            progress(text_bytes, plan.corpus.total_bytes, writer.tokens)
            if writer.is_full:
                break
    samples = (writer.tokens - plan.lookahead) // plan.context_length
    if samples < 1:
        raise _too_little(plan, writer.tokens, text_bytes)
    return Manifest(
        form=FORM,
        key=plan.key,
        inputs=plan.inputs,
        dtype=plan.dtype,
        tokens=writer.tokens,
        samples=samples,
        context_length=plan.context_length,
        lookahead=plan.lookahead,
        vocab_size=plan.tokenizer.vocab_size,
        end_of_text=plan.tokenizer.end_of_text,
        documents=documents,
        text_bytes=text_bytes,
        checksums=tuple(writer.checksums),
    )


def _answers(plan: _Plan) -> Iterator[Any]:
    from rankscope.train.data.pool import Pool
    from rankscope.train.data.worker import Setup

    setup = Setup(plan.tokenizer, plan.corpus.kind, plan.corpus.text_field, plan.dtype)
    workers = min(plan.workers, max(1, -(-plan.corpus.total_bytes // corpora.PART_BYTES)))
    with Pool(setup, workers) as pool:
        yield from pool.encode(_work(plan.corpus))


def _work(corpus: Corpus) -> Iterator[Any]:
    from rankscope.train.data.worker import Work

    if corpus.hub is None:
        yield from (Work(ranges=part.ranges) for part in corpora.parts(corpus))
    else:
        yield from (Work(texts=tuple(texts)) for texts in corpus.hub.texts())


class _TokenWriter:
    """Writes tokens up to a number of them, with a checksum for each block."""

    def __init__(self, path: Path, width: int, most: int | None) -> None:
        self._file = path.open("wb")
        self._most = None if most is None else most * width
        self._width = width
        self._bytes = 0
        self._digest = hashlib.sha256()
        self.checksums: list[str] = []

    @property
    def tokens(self) -> int:
        return self._bytes // self._width

    @property
    def is_full(self) -> bool:
        return self._most is not None and self._bytes >= self._most

    def add(self, tokens: bytes) -> None:
        rest = memoryview(tokens)
        if self._most is not None:
            rest = rest[: self._most - self._bytes]
        self._file.write(rest)
        while len(rest):
            into_block = rest[: BLOCK_BYTES - self._bytes % BLOCK_BYTES]
            self._digest.update(into_block)
            self._bytes += len(into_block)
            rest = rest[len(into_block) :]
            if self._bytes % BLOCK_BYTES == 0:
                self._end_block()

    def _end_block(self) -> None:
        self.checksums.append(self._digest.hexdigest())
        self._digest = hashlib.sha256()

    def __enter__(self) -> _TokenWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                if self._bytes % BLOCK_BYTES:
                    self._end_block()
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            # What is left in its buffer may not fit either; the first failure is the one to tell.
            with contextlib.suppress(OSError):
                self._file.close()


def _write_small(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _some_text(corpus: Corpus, size: int) -> Iterator[str]:
    """About `size` bytes, spread over the corpus."""
    from rankscope.train.data.reading import documents

    stride = max(1, -(-corpus.total_bytes // size))
    if corpus.hub is not None:
        for number, texts in enumerate(corpus.hub.texts()):
            if number % stride == 0:
                yield from texts
        return
    for number, part in enumerate(corpora.parts(corpus)):
        if number % stride == 0:
            for piece in part.ranges:
                for text, _ in documents(corpus.kind, piece, corpus.text_field, any_bytes=False):
                    yield text.decode("utf-8")


def _sweep(cache: Path, key: str) -> None:
    """Removes what preparations that were killed have left: of this dataset, whose lock is ours, and of others whose
    lock nobody holds."""
    for left in cache.glob(".*.building-*"):
        owner = left.name.split(".")[1]
        if owner == key or is_free(cache / f".{owner}.lock"):
            shutil.rmtree(left, ignore_errors=True)


def _too_little(plan: _Plan, tokens: int, text_bytes: int) -> DataError:
    if text_bytes == 0:
        return DataError(f"the dataset is empty: {plan.corpus.label} holds no text")
    return DataError(
        f"{plan.corpus.label} gives only {tokens} tokens, and one sample needs {plan.context_length + plan.lookahead}: "
        f"add text, or write model.context_length={max(1, tokens - plan.lookahead)} or less"
    )


def _counts(manifest: Manifest) -> str:
    return (
        f"{manifest.samples:,} samples of {manifest.context_length} tokens, {manifest.tokens:,} tokens of "
        f"{manifest.documents:,} documents"
    )
