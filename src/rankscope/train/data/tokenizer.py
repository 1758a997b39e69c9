"""Which tokenizer a run uses: bytes, one trained on the corpus, a file, or a name of the hub."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankscope.errors import DataError, UsageError
from rankscope.train.config import DataConfig
from rankscope.train.data.storing import exclusive, write_whole

END_OF_TEXT = "<|endoftext|>"
_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]")
TRAINING_BYTES = 32 << 20
"""Text that a tokenizer is trained on; more changes little and takes long."""


@dataclass(frozen=True, slots=True)
class TokenizerChoice:
    content: str
    """The tokenizer.json; empty for the bytes tokenizer."""
    vocab_size: int
    end_of_text: int
    label: str
    """For people."""

    @property
    def fingerprint(self) -> str:
        text = f"{self.content or 'bytes'} end of text {self.end_of_text}"
        return hashlib.sha256(text.encode()).hexdigest()


BYTES = TokenizerChoice("", 257, 256, "bytes")


def choose_tokenizer(
    data: DataConfig, dataset: str, texts: Callable[[int], Iterator[str]], say: Callable[[str], None]
) -> TokenizerChoice:
    """`dataset` is the corpus's fingerprint, `texts(n)` about n bytes of it, for a tokenizer to be trained on."""
    if data.tokenizer == "bytes":
        return BYTES
    if data.tokenizer == "bpe":
        return _trained(data, dataset, texts, say)
    if data.tokenizer == "file":
        return from_file(Path(data.tokenizer_file or ""))
    return _from_hub(data.tokenizer_name or "")


def from_file(path: Path) -> TokenizerChoice:
    if path.is_dir() and (path / "tokenizer.json").exists():
        path = path / "tokenizer.json"
    try:
        content = path.read_text("utf-8")
    except FileNotFoundError:
        raise DataError(
            f"data.tokenizer_file: '{path}' does not exist (current folder: {os.getcwd()}); name a tokenizer.json, or "
            "write data.tokenizer=bytes or bpe, which need none"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"data.tokenizer_file: '{path}' cannot be read: {error}") from error
    return from_content(content, str(path))


def from_content(content: str, label: str) -> TokenizerChoice:
    tokenizer = load_tokenizer(content, label)
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise DataError(f"the tokenizer {label} has no tokens")
    size = max(vocabulary.values()) + 1
    for name in _ENDS:
        if name in vocabulary:
            return TokenizerChoice(content, size, vocabulary[name], label)
    # Documents must end with something the text itself cannot hold.
    return TokenizerChoice(content, size + 1, size, label)


def load_tokenizer(content: str, label: str) -> Any:
    """A `tokenizers.Tokenizer`, which neither shortens nor fills up what it encodes."""
    tokenizers = _library()
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content)
    except Exception as error:
        raise DataError(f"{label} is not a tokenizer.json: {_first_line(error)}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _trained(
    data: DataConfig, dataset: str, texts: Callable[[int], Iterator[str]], say: Callable[[str], None]
) -> TokenizerChoice:
    tokenizers = _library()
    size = data.tokenizer_vocab_size
    smallest = 257
    if size < smallest:
        raise UsageError(
            f"data.tokenizer_vocab_size is {size}: a BPE tokenizer has 256 bytes and the end of a text, so write at "
            f"least {smallest}"
        )
    name = hashlib.sha256(f"{dataset} {size} {TRAINING_BYTES} {tokenizers.__version__}".encode()).hexdigest()[:20]
    path = Path(data.cache_dir) / "tokenizers" / f"{name}.json"
    label = f"BPE of {size} tokens trained on this corpus"
    if not path.exists():
        with exclusive(path.with_suffix(".lock"), "training this tokenizer", say):
            if not path.exists():
                say(f"training a BPE tokenizer of {size} tokens on up to {TRAINING_BYTES >> 20} MiB of the text")
                write_whole(path, _train(tokenizers, size, texts(TRAINING_BYTES)).encode())
    try:
        return from_content(path.read_text("utf-8"), label)
    except (DataError, UnicodeDecodeError):
        say(f"{path} is damaged: training the tokenizer again")
        path.unlink(missing_ok=True)
        return _trained(data, dataset, texts, say)


def _train(tokenizers: Any, size: int, texts: Iterator[str]) -> str:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    content: str = tokenizer.to_str()
    return content


def _from_hub(name: str) -> TokenizerChoice:
    tokenizers = _library()
    # The hub's library warns of each try; one line at the end says it all.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        content = tokenizers.Tokenizer.from_pretrained(name).to_str()
    except Exception as error:
        raise DataError(
            f"data.tokenizer_name: the tokenizer '{name}' could not be had from the hub ({_first_line(error)}); check "
            "the name and the network, or write data.tokenizer=file with a tokenizer.json"
        ) from error
    return from_content(content, name)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UsageError(
            "this tokenizer needs the package 'tokenizers': pip install 'rankscope[train]', or write "
            "data.tokenizer=bytes"
        ) from None
    return tokenizers


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__


def model_settings(content: str) -> dict[str, Any]:
    """The tokenizer.json as a dictionary."""
    settings: dict[str, Any] = json.loads(content)
    return settings
