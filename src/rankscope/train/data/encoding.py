"""From text to token ids, exactly as the tokenizer itself gives them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rankscope.train.data.pretokens import cuts
from rankscope.train.data.tokenizer import TokenizerChoice, load_tokenizer, model_settings
from rankscope.train.data.wordtable import WordTable

BLOCK = 128 << 10
"""Small enough for the work on a block to stay in the processor's cache."""
_CERTAIN_CUT = re.compile(rb"[\n ](?=[!-~])")


class Encoder(Protocol):
    def __call__(self, text: bytes) -> NDArray[Any]:
        """Ids of UTF-8 text."""


def make_encoder(choice: TokenizerChoice) -> Encoder:
    """The fastest one that gives the tokenizer's own ids."""
    if not choice.content:
        return lambda text: np.frombuffer(text, dtype=np.uint8)
    tokenizer = load_tokenizer(choice.content, choice.label)
    if is_plain_gpt2(model_settings(choice.content)):
        return WordEncoder(tokenizer)
    return lambda text: _own_ids(tokenizer, text)


def is_plain_gpt2(settings: dict[str, Any]) -> bool:
    """Whether text is cut by GPT-2's rule and nothing else, and each piece encoded by itself."""
    before = settings.get("pre_tokenizer") or {}
    model = settings.get("model") or {}
    return (
        settings.get("normalizer") is None
        and before.get("type") == "ByteLevel"
        and not before.get("add_prefix_space", True)
        and before.get("use_regex", True)
        and model.get("type") == "BPE"
        and not model.get("dropout")
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
    )


class WordEncoder:
    """Looks words up, and asks the tokenizer once for each new one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokenize = tokenizer.model.tokenize
        self._letters = _byte_letters()
        self._table = WordTable(self._encode)
        # Found in the text before it is cut; what stands around them is then cut differently.
        self._added = [token.content.encode() for token in tokenizer.get_added_tokens_decoder().values()]

    def __call__(self, text: bytes) -> NDArray[np.uint32]:
        if any(token in text for token in self._added):
            return _own_ids(self._tokenizer, text)
        found = [self._table.ids(block, cuts(np.frombuffer(block, dtype=np.uint8))) for block in _blocks(text)]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.uint32)

    def _encode(self, pieces: Sequence[bytes]) -> list[list[int]]:
        return [self._encode_piece(piece) for piece in pieces]

    def _encode_piece(self, piece: bytes) -> list[int]:
        if piece.isascii():
            return [token.id for token in self._tokenize(piece.decode("ascii").translate(self._letters))]
        ids: list[int] = self._tokenizer.encode(piece.decode("utf-8"), add_special_tokens=False).ids
        return ids


def _own_ids(tokenizer: Any, text: bytes) -> NDArray[np.uint32]:
    return np.array(tokenizer.encode(text.decode("utf-8"), add_special_tokens=False).ids, dtype=np.uint32)


def _blocks(text: bytes) -> list[bytes]:
    """Cut where the rule cuts, whatever stands around."""
    found = []
    begin = 0
    while begin < len(text):
        match = _CERTAIN_CUT.search(text, begin + BLOCK)
        end = match.start() if match else len(text)
        found.append(text[begin:end])
        begin = end
    return found


def _byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in byte-level vocabularies: itself where it can be seen, else one from 256
    on, in order."""
    visible = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters: dict[int, str] = {}
    for byte in range(256):
        letters[byte] = chr(byte) if byte in visible else chr(256 + byte - sum(1 for each in visible if each < byte))
    return letters
