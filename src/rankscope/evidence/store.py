"""Evidence on disk: one file, `evidence.json`, written whole or not at all."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from rankscope.errors import EvidenceError
from rankscope.evidence.encode import to_json
from rankscope.evidence.model import SCHEMA, Evidence, RankEvidence
from rankscope.evidence.plausible import beyond_any_job
from rankscope.evidence.regular import read_regular
from rankscope.private_files import make_private_folder, write_private

FILE_NAME = "evidence.json"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Header(msgspec.Struct, frozen=True):
    schema: int


def save_evidence(evidence: Evidence, folder: Path) -> None:
    """Writes `evidence.json`, readable by its owner only.

    Where the disk has no room, less and less of it is tried: without the sources, without the ranks' output,
    with the newest calls and collectives only. What was left out is named in `missing`.
    """
    path = folder / FILE_NAME
    try:
        make_private_folder(folder)
        for version in _ever_smaller(evidence):
            try:
                return write_private(path, _pieces(version), sync=True)
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
        data = read_regular(file)
    except EvidenceError as error:
        if str(error) == "is empty":
            raise EvidenceError(f"{file} is empty: the run ended before its evidence was written") from error
        raise EvidenceError(f"{file} {error}") from error
    except OSError as error:
        raise EvidenceError(f"{file} cannot be read: {error.strerror}") from error
    try:
        schema = msgspec.json.decode(data, type=_Header).schema
        if schema != SCHEMA:
            raise EvidenceError(f"{file} has schema {schema}; this version of rankscope reads schema {SCHEMA}")
        return _sane(msgspec.json.decode(data, type=Evidence), file)
    except msgspec.ValidationError as error:
        raise EvidenceError(f"{file} is not evidence of rankscope: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EvidenceError(f"{file} is damaged or cut off: {error}") from error


def _sane(evidence: Evidence, file: Path) -> Evidence:
    too_much = beyond_any_job(evidence)
    if too_much is not None:
        raise EvidenceError(f"{file} names {too_much}")
    return evidence


def _find(path: Path) -> Path:
    if not path.is_dir():
        if not path.exists():
            raise EvidenceError(f"{path} does not exist")
        return path
    for file in (path / FILE_NAME, path / "evidence" / FILE_NAME):
        if file.exists():
            return file
    raise EvidenceError(f"{path} holds no {FILE_NAME}: give the folder of a run")


def _pieces(evidence: Evidence) -> Iterator[bytes]:
    """Its JSON, rank by rank: of thousands of ranks it is a hundred megabytes, and this process need not hold them."""
    before = b"{"
    for name in evidence.__struct_fields__:
        yield before + to_json(name) + b":"
        before = b","
        if name != "ranks":
            yield to_json(getattr(evidence, name))
            continue
        yield b"["
        for place, rank in enumerate(evidence.ranks):
            yield (b"," if place else b"") + to_json(rank)
        yield b"]"
    yield b"}"


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
