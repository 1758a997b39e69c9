"""One process that encodes: reads pieces of work from standard input until it ends, answers on standard output. It ends
with the process that started it, because its input ends then."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
import numpy as np

from rankscope.errors import RankscopeError
from rankscope.train.data.corpus import Kind, Range
from rankscope.train.data.encoding import Encoder, make_encoder
from rankscope.train.data.reading import documents
from rankscope.train.data.tokenizer import TokenizerChoice


@dataclass(frozen=True, slots=True)
class Setup:
    tokenizer: TokenizerChoice
    kind: Kind
    text_field: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Work:
    ranges: tuple[Range, ...] = ()
    texts: tuple[str, ...] = ()
    """Documents themselves, where they are not in files."""


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: bytes = b""
    documents: int = 0
    text_bytes: int = 0
    error: str | None = None
    """What a person should read; nothing else is filled then."""


def send(stream: BinaryIO, message: object) -> None:
    content = msgspec.msgpack.encode(message)
    stream.write(len(content).to_bytes(8, "little"))
    stream.write(content)
    stream.flush()


def receive(stream: BinaryIO) -> bytes | None:
    """None at the end."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    size = int.from_bytes(head, "little")
    content = stream.read(size)
    return content if len(content) == size else None


def work(encoder: Encoder, setup: Setup, task: Work) -> Answer:
    """Raises RankscopeError for text that cannot be used."""
    any_bytes = not setup.tokenizer.content
    end = np.array([setup.tokenizer.end_of_text], dtype=setup.dtype).tobytes()
    tokens: list[bytes] = []
    count = text_bytes = 0
    found = (
        document for piece in task.ranges for document in documents(setup.kind, piece, setup.text_field, any_bytes)
    )
    for text, ends in found:
        tokens.append(encoder(text).astype(setup.dtype).tobytes())
        text_bytes += len(text)
        if ends:
            tokens.append(end)
            count += 1
    for each in task.texts:
        encoded = each.encode("utf-8", "replace")
        tokens += [encoder(encoded).astype(setup.dtype).tobytes(), end]
        text_bytes += len(encoded)
        count += 1
    return Answer(b"".join(tokens), count, text_bytes)


def main() -> int:
    # The answers must not be disturbed by anything that a library prints.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    tasks = sys.stdin.buffer
    first = receive(tasks)
    if first is None:
        return 0
    setup = msgspec.msgpack.decode(first, type=Setup)
    encoder = make_encoder(setup.tokenizer)
    try:
        while (content := receive(tasks)) is not None:
            try:
                answer = work(encoder, setup, msgspec.msgpack.decode(content, type=Work))
            except RankscopeError as error:
                answer = Answer(error=str(error))
            send(answers, answer)
    except (BrokenPipeError, KeyboardInterrupt):
        # Whoever asked is gone, or Ctrl-C reached all of us: the one who asked says so.
        return 1
    return 0
