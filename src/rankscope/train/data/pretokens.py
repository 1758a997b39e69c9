"""Where GPT-2's pre-tokenizer cuts a text, found for a whole block at once with numpy.

The rule is `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`.
For ASCII its cuts follow from the classes of neighbouring bytes. What other characters are, only the tokenizer's own
tables say; a stretch that holds any is left whole, from one certain cut to the next, and is for the tokenizer itself to
cut. A BPE tokenizer joins nothing across cuts, so the pieces' tokens one after the other are the block's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LETTER, _DIGIT, _OTHER, _WHITE, _FOREIGN = range(5)
_APOSTROPHE, _SPACE = ord("'"), ord(" ")


def _classes() -> NDArray[np.uint8]:
    table = np.full(256, _OTHER, dtype=np.uint8)
    for byte in range(256):
        # Python's isspace() counts 0x1c to 0x1f too, which the rule's \s does not.
        if byte in b"\t\n\x0b\x0c\r ":
            table[byte] = _WHITE
        elif byte >= 0x80:
            table[byte] = _FOREIGN
        elif chr(byte).isalpha():
            table[byte] = _LETTER
        elif chr(byte).isdigit():
            table[byte] = _DIGIT
    return table


def _certainly_not_white() -> NDArray[np.bool_]:
    """First bytes of characters that are no white space. Those that begin with C2, E1, E2, E3 may be some."""
    table = np.zeros(256, dtype=np.bool_)
    for byte in range(256):
        table[byte] = byte not in b"\t\n\x0b\x0c\r " if byte < 0x80 else byte >= 0xC3 and byte not in (0xE1, 0xE2, 0xE3)
    return table


_CLASS = _classes()
_SOLID = _certainly_not_white()


def cuts(block: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Offsets at which pieces of the UTF-8 text `block` begin, 0 included."""
    size = len(block)
    if size == 0:
        return np.zeros(0, dtype=np.int64)
    kind = _CLASS[block]
    begins = np.empty(size, dtype=np.bool_)
    begins[0] = True
    np.not_equal(kind[1:], kind[:-1], out=begins[1:])

    # White space before a word: the last of it stands alone, or goes with the word where it is a space.
    white = kind == _WHITE
    last_white = np.flatnonzero(white[:-1] & ~white[1:])
    begins[last_white] = True
    spaces = last_white[block[last_white] == _SPACE]
    begins[spaces + 1] = False
    _apply_contractions(block, kind, begins)

    foreign = kind == _FOREIGN
    if foreign.any():
        _leave_whole(block, foreign, last_white, begins)
    return np.flatnonzero(begins)


def _apply_contractions(block: NDArray[np.uint8], kind: NDArray[np.uint8], begins: NDArray[np.bool_]) -> None:
    """`'s` and its like are pieces where the apostrophe begins one, and end in the middle of `'system` too."""
    size = len(block)
    marks = np.flatnonzero(block == _APOSTROPHE)
    # Beginning a piece, and alone: of `''s` the two apostrophes are the piece.
    marks = marks[begins[marks] & (marks + 1 < size)]
    marks = marks[kind[marks + 1] == _LETTER]
    if not len(marks):
        return
    first = block[marks + 1]
    second = block[np.minimum(marks + 2, size - 1)]
    has_second = marks + 2 < size
    short = np.isin(first, np.frombuffer(b"stmd", dtype=np.uint8))
    long = has_second & (
        ((first == ord("r")) & (second == ord("e")))
        | ((first == ord("v")) & (second == ord("e")))
        | ((first == ord("l")) & (second == ord("l")))
    )
    begins[marks[short | long] + 1] = False
    ends = np.concatenate([marks[short] + 2, marks[long] + 3])
    begins[ends[ends < size]] = True


def _leave_whole(
    block: NDArray[np.uint8], foreign: NDArray[np.bool_], last_white: NDArray[Any], begins: NDArray[np.bool_]
) -> None:
    """Takes back the cuts of stretches with characters beyond ASCII; between ASCII white space and a character
    that is certainly none, the rule cuts whatever stands around."""
    certain = last_white[_SOLID[block[last_white + 1]]]
    marks = np.zeros(len(block), dtype=np.bool_)
    marks[0] = True
    marks[certain] = True
    marks[certain[block[certain] != _SPACE] + 1] = True
    starts = np.flatnonzero(marks)
    # No stretch of foreign characters reaches across one of these cuts: its beginning stands for all of it.
    first_of_its_kind = foreign.copy()
    first_of_its_kind[1:] &= ~foreign[:-1]
    beginnings = np.flatnonzero(first_of_its_kind)
    holds_foreign = np.zeros(len(starts), dtype=np.bool_)
    holds_foreign[np.searchsorted(starts, beginnings, side="right") - 1] = True
    begins &= ~np.repeat(holds_foreign, np.diff(np.append(starts, len(block))))
    begins[starts] = True
