"""Evidence on disk: one file, `evidence.json`, written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from rankscope.errors import EvidenceError
from rankscope.evidence.encode import to_json
from rankscope.evidence.model import SCHEMA, Evidence, RankEvidence

FILE_NAME = "evidence.json"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class _Header:
    schema: int


def save_evidence(evidence: Evidence, folder: Path) -> None:
    """Writes `evidence.json`, readable by its owner only.

    Where the disk has no room, less and less of it is tried: without the sources, without the ranks' output,
    with the newest calls and collectives only. What was left out is named in `missing`.
    """
    path = folder / FILE_NAME
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for version in _ever_smaller(evidence):
            try:
                return _replace_file(path, to_json(version))
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                full = error
        raise full
    except OSError as error:
        raise EvidenceError(f"{path} cannot be written: {error.strerror}") from error


def load_evidence(path: Path) -> Evidence:
    """Reads an evidence file, the folder it is in, or the folder of a run."""
    file = _find(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise EvidenceError(f"{file} cannot be read: {error.strerror}") from error
    if not data:
        raise EvidenceError(f"{file} is empty: the run ended before its evidence was written")
    try:
        schema = msgspec.json.decode(data, type=_Header).schema
        if schema != SCHEMA:
            raise EvidenceError(f"{file} has schema {schema}; this version of rankscope reads schema {SCHEMA}")
        return msgspec.json.decode(data, type=Evidence)
    except msgspec.ValidationError as error:
        raise EvidenceError(f"{file} is not evidence of rankscope: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EvidenceError(f"{file} is damaged or cut off: {error}") from error


def _find(path: Path) -> Path:
    if not path.is_dir():
        if not path.exists():
            raise EvidenceError(f"{path} does not exist")
        return path
    for file in (path / FILE_NAME, path / "evidence" / FILE_NAME):
        if file.exists():
            return file
    raise EvidenceError(f"{path} holds no {FILE_NAME}: give the folder of a run")


def _replace_file(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        temporary.rename(path)
    finally:
        with suppress(OSError):  # After the rename it is not there; where it cannot be removed, the write says why.
            temporary.unlink()


def _ever_smaller(evidence: Evidence) -> Iterator[Evidence]:
    yield evidence
    evidence = replace(evidence, sources=(), missing=_left_out(evidence.missing, "sources"))
    yield evidence
    yield (evidence := _with_ranks(evidence, [_without_output(rank) for rank in evidence.ranks]))
    for newest in (200, 20):
        yield (evidence := _with_ranks(evidence, [_with_newest(rank, newest) for rank in evidence.ranks]))


def _without_output(rank: RankEvidence) -> RankEvidence:
    return replace(rank, output_tail=(), error_tail=(), missing=_left_out(rank.missing, "output"))


def _with_newest(rank: RankEvidence, newest: int) -> RankEvidence:
    progress = rank.progress
    if progress is not None:
        progress = replace(progress, calls=progress.calls[-newest:])
    missing = _left_out(rank.missing, f"all but the newest {newest} calls and collectives")
    return replace(rank, progress=progress, collectives=rank.collectives[-newest:], missing=missing)


def _with_ranks(evidence: Evidence, ranks: list[RankEvidence]) -> Evidence:
    return replace(evidence, ranks=tuple(ranks))


def _left_out(missing: dict[str, str], what: str) -> dict[str, str]:
    return {**missing, what: "left out: the disk had no room for it"}
