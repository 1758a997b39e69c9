"""From a range of a corpus to its documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rankscope.errors import DataError, UsageError
from rankscope.train.data.corpus import Kind, Range


def documents(kind: Kind, piece: Range, text_field: str, any_bytes: bool) -> Iterator[tuple[bytes, bool]]:
    """Each document's bytes, and whether it ends with them. `any_bytes`: text need not be UTF-8."""
    if kind == "text":
        yield _text(piece, any_bytes), piece.ends_document
    elif kind == "jsonl":
        yield from ((text, True) for text in _json_lines(piece, text_field))
    elif kind == "parquet":
        yield from ((text, True) for text in _parquet(piece, text_field))
    else:
        raise ValueError(f"documents of '{kind}' are not in files")


def open_parquet(path: str) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UsageError("data.source 'parquet' needs the package 'pyarrow': pip install 'rankscope[train]'") from None
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a parquet file: {str(error).partition(chr(10))[0]}") from error


def _text(piece: Range, any_bytes: bool) -> bytes:
    content = _bytes(piece)
    if not any_bytes:
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise not_utf8(piece.path, piece.begin + error.start, content[error.start]) from None
    return content


def not_utf8(path: str, offset: int, byte: int) -> DataError:
    return DataError(
        f"{path}, line {_line_at(path, offset)}: byte 0x{byte:02x} at offset {offset} is not UTF-8; convert the file "
        "(iconv -f latin1 -t utf-8), or write data.tokenizer=bytes, which takes any bytes"
    )


def _json_lines(piece: Range, field: str) -> Iterator[bytes]:
    offset = piece.begin
    decoder = msgspec.json.Decoder()
    for line in _bytes(piece).split(b"\n"):
        if line and not line.isspace():
            yield _field(decoder, line, field, piece.path, offset)
        offset += len(line) + 1


def _field(decoder: msgspec.json.Decoder[Any], line: bytes, field: str, path: str, offset: int) -> bytes:
    try:
        record = decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}, line {_line_at(path, offset)}: not JSON ({error})") from None
    value = record.get(field) if isinstance(record, dict) else None
    if not isinstance(value, str):
        has = f"its fields are {', '.join(record)}" if isinstance(record, dict) else "it is no object"
        raise DataError(
            f"{path}, line {_line_at(path, offset)}: no text in the field '{field}' ({has}); name it with "
            "data.text_field"
        )
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{path}, line {_line_at(path, offset)}: half a surrogate pair, which is no text") from None


def _parquet(piece: Range, field: str) -> Iterator[bytes]:
    file = open_parquet(piece.path)
    names = file.schema_arrow.names
    if field not in names:
        raise DataError(
            f"{piece.path}: no column '{field}' (its columns are {', '.join(names)}); name it with data.text_field"
        )
    row = 0
    for batch in file.iter_batches(batch_size=256, row_groups=range(piece.begin, piece.end), columns=[field]):
        for value in batch.column(0).to_pylist():
            if not isinstance(value, str):
                raise DataError(
                    f"{piece.path}: column '{field}' holds {type(value).__name__} instead of text in row {row} of row "
                    f"group {piece.begin}; name another with data.text_field"
                )
            yield value.encode("utf-8")
            row += 1


def _bytes(piece: Range) -> bytes:
    try:
        with open(piece.path, "rb") as file:
            file.seek(piece.begin)
            content = file.read(piece.end - piece.begin)
    except OSError as error:
        raise DataError(f"{piece.path} cannot be read: {error.strerror or error}") from error
    if len(content) != piece.end - piece.begin:
        raise DataError(f"{piece.path} became shorter while it was read; wait until it is complete")
    return content


def _line_at(path: str, offset: int) -> int:
    line = 1
    with open(path, "rb") as file:
        while offset > 0:
            chunk = file.read(min(offset, 1 << 20))
            if not chunk:
                break
            line += chunk.count(b"\n")
            offset -= len(chunk)
    return line
