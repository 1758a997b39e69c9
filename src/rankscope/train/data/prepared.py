"""A prepared dataset on disk: a flat file of tokens beside a manifest that says what they are."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from rankscope.errors import DamagedDataset

FORM = 1
TOKENS = "tokens.bin"
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    form: int
    """Of this folder; raised when an older program could not read it."""
    key: str
    """Name of the folder, made of `inputs`."""
    inputs: dict[str, Any]
    """What the key covers: tokenizer, dataset, context length, samples asked for."""
    dtype: Literal["uint16", "uint32"]
    """Of a token in the file, little endian."""
    tokens: int
    samples: int
    """Sample i begins at token i * context_length."""
    context_length: int
    lookahead: int
    """Tokens of a sample beyond its context: 1, or the number of multi-token heads."""
    vocab_size: int
    end_of_text: int
    """Stands after each document."""
    documents: int
    text_bytes: int
    """UTF-8 bytes of text that were encoded."""
    checksums: tuple[str, ...]
    """SHA-256 of each 16 MiB of the file."""

    @property
    def checksum(self) -> str:
        """Of all tokens; what a checkpoint remembers of its data."""
        return hashlib.sha256("".join(self.checksums).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PreparedDataset:
    folder: Path
    manifest: Manifest

    @property
    def tokens_path(self) -> Path:
        return self.folder / TOKENS

    @property
    def tokenizer_path(self) -> Path | None:
        """None for the bytes tokenizer."""
        path = self.folder / TOKENIZER
        return path if path.exists() else None


def open_prepared(folder: Path) -> PreparedDataset:
    """What a rank opens: a few milliseconds, sizes checked. Raises DamagedDataset."""
    try:
        written = (folder / MANIFEST).read_bytes()
        size = (folder / TOKENS).stat().st_size
    except OSError as error:
        raise DamagedDataset(f"{folder} is no prepared dataset: {error}") from error
    manifest = _read_manifest(written, folder)
    expected = manifest.tokens * width(manifest)
    if size != expected:
        raise DamagedDataset(f"{folder / TOKENS} has {size} bytes, not the {expected} that its manifest names")
    return PreparedDataset(folder, manifest)


def open_verified(folder: Path) -> PreparedDataset:
    """What the launcher opens, once a job: every token is read and its checksum compared. Raises DamagedDataset."""
    prepared = open_prepared(folder)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        found = list(threads.map(lambda begin: _block_checksum(prepared.tokens_path, begin), _block_begins(prepared)))
    for number, (now, then) in enumerate(zip(found, prepared.manifest.checksums, strict=True)):
        if now != then:
            raise DamagedDataset(
                f"{prepared.tokens_path} is not what was written: the checksum of block {number} (from byte "
                f"{number * BLOCK_BYTES}) differs"
            )
    return prepared


def encode_manifest(manifest: Manifest) -> bytes:
    """With a checksum of its own, so that a changed number is noticed."""
    content = asdict(manifest)
    return json.dumps({"manifest": content, "sha256": _content_checksum(content)}, indent=2).encode() + b"\n"


def width(manifest: Manifest) -> int:
    """Bytes of a token."""
    return 2 if manifest.dtype == "uint16" else 4


def _read_manifest(written: bytes, folder: Path) -> Manifest:
    try:
        decoded = json.loads(written)
        if decoded["sha256"] != _content_checksum(decoded["manifest"]):
            raise ValueError("its checksum differs")
        manifest = msgspec.convert(decoded["manifest"], Manifest)
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise DamagedDataset(f"{folder / MANIFEST} cannot be read: {error}") from error
    blocks = -(-manifest.tokens * width(manifest) // BLOCK_BYTES)
    if manifest.form != FORM or len(manifest.checksums) != blocks:
        raise DamagedDataset(f"{folder / MANIFEST} has form {manifest.form}, this version reads form {FORM}")
    return manifest


def _content_checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _block_begins(prepared: PreparedDataset) -> Iterator[int]:
    return iter(range(0, prepared.manifest.tokens * width(prepared.manifest), BLOCK_BYTES))


def _block_checksum(path: Path, begin: int) -> str:
    with path.open("rb") as file:
        file.seek(begin)
        return hashlib.sha256(file.read(BLOCK_BYTES)).hexdigest()
