"""Secrets out of source code that is still to be read as code."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from rankscope.mask.names import may_name_secret
from rankscope.mask.pairs import mask_pairs
from rankscope.mask.private_keys import without_private_keys
from rankscope.mask.shapes import without_shapes
from rankscope.mask.text import mask_line, mask_text, without_known

if TYPE_CHECKING:
    import tokenize

_LONGEST_LINE = 10_000
"""Of code; what is longer is data, and `tokenize` takes long for it."""
_STRING = re.compile(r"(?P<open>(?P<prefix>[A-Za-z]{0,2})(?P<quote>\"{3}|'{3}|\"|'))(?P<text>.*)(?P=quote)", re.DOTALL)


def mask_code(text: str) -> str:
    """Only strings and comments change, so that `sorted(rows, key=size)` still parses; lines stay lines."""
    text = without_private_keys(text)
    if may_name_secret(text) and ('"' in text or "'" in text):
        from rankscope.mask.literals import without_named_literals  # not with the module: the parser is large

        indented = len(text) - len(text.lstrip(" \t")) if "\n" not in text else 0
        text = text[:indented] + without_named_literals(text[indented:])
    lines = text.split("\n")
    masked = "\n".join(without_known(without_shapes(mask_pairs(line, quoted_only=True))) for line in lines)
    as_text = "\n".join(map(mask_line, masked.split("\n")))
    if as_text == masked or max(map(len, lines)) > _LONGEST_LINE:
        return as_text
    inside = _mask_strings(masked)
    return inside if inside is not None and (_parses(inside) or not _parses(masked)) else masked


def _mask_strings(code: str) -> str | None:
    """What stands in strings and comments is text; None where the code cannot be read."""
    import tokenize  # not with the module: every start of the command would pay for it

    lines = code.split("\n")
    changes: list[tuple[tuple[int, int], tuple[int, int], str]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if (new := _masked(token)) != token.string:
                changes.append((token.start, token.end, new))
    except (tokenize.TokenError, SyntaxError, IndexError):
        return None
    for (first, column), (last, end), new in reversed(changes):
        tail = lines[last - 1][end:]
        lines[first - 1 : last] = (lines[first - 1][:column] + new + tail).split("\n")
    return "\n".join(lines)


def _masked(token: tokenize.TokenInfo) -> str:
    import token as kinds

    if token.type == kinds.COMMENT:
        return mask_text(token.string)
    if token.type == kinds.STRING:
        parts = _STRING.fullmatch(token.string)
        if parts is None or "f" in parts["prefix"].lower():
            return token.string
        return f"{parts['open']}{mask_text(parts['text'])}{parts['quote']}"
    if token.type != getattr(kinds, "FSTRING_MIDDLE", None):
        return token.string
    # Doubled braces of an f-string are told as one: such a token is longer than what it says.
    whole = token.start[0] == token.end[0] and token.end[1] - token.start[1] == len(token.string)
    return mask_text(token.string) if whole else token.string


def _parses(code: str) -> bool:
    from rankscope.mask.literals import parsed

    return parsed(code) is not None
