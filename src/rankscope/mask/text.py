"""Secrets out of texts, arguments and variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rankscope.mask.names import (
    MASK,
    USER_OPTIONS,
    is_password_name,
    is_plain,
    is_secret_name,
    is_secret_option,
    looks_random,
)
from rankscope.mask.pairs import mask_pairs
from rankscope.mask.private_keys import without_private_keys
from rankscope.mask.shapes import without_headers, without_shapes
from rankscope.terminal_text import without_escapes

# Colours as JSON and a repr write them.
_WRITTEN_ESCAPE = re.compile(r"\\{1,8}(?:x1b|u001b|033|e)\[[0-9;]{0,20}m", re.IGNORECASE)

_LEAST_LEARNT = 6
_MOST_LEARNT = 500
_learnt: set[str] = set()
_learnt_pattern: list[re.Pattern[str]] = []


def learn(arguments: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
    """From now on the values that these call secret are masked wherever they stand, in any text.

    Not those that could be anything: short ones, numbers, plain words, names of files.
    """
    named = {value for name, value in (variables or {}).items() if is_secret_name(name)}
    for _, (option, value) in _values_of_secret_options(arguments):
        named.add(value.partition(":")[2] if option in USER_OPTIONS else value)
    learn_values({word for value in named for word in (value, *value.split())})


def learn_values(words: Iterable[str]) -> None:
    """The same for values that are known to be secret."""
    fit = {word for word in words if len(word) >= _LEAST_LEARNT and not _could_be_anything(word)}
    _learnt.update(sorted(fit - _learnt)[: max(0, _MOST_LEARNT - len(_learnt))])
    if _learnt:
        longest_first = sorted(map(re.escape, _learnt), key=len, reverse=True)
        _learnt_pattern[:] = [re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(longest_first)})(?![A-Za-z0-9])")]


def forget() -> None:
    """No value is known any more."""
    _learnt.clear()
    _learnt_pattern.clear()


def _could_be_anything(value: str) -> bool:
    return is_plain(value) or value.startswith(("/", "./", "~/")) or (value.isalpha() and len(value) < 10)


def mask_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """A copy with the values of secret variables masked, and secrets inside other values too."""
    return {name: MASK if is_secret_name(name) else mask_text(value) for name, value in variables.items()}


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line with the values of secret options masked, whatever spaces they hold."""
    values = dict(_values_of_secret_options(arguments))
    return [
        mask_text(argument) if at not in values else _masked_argument(argument, *values[at])
        for at, argument in enumerate(arguments)
    ]


def _values_of_secret_options(arguments: Sequence[str]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Where one stands: the option and its value. `--api-keys A B` has several."""
    option = ""
    first = True
    for at, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        given = option and not argument.startswith("--") and not _stays(option, argument)
        if given and (first or looks_random(argument) or (option.lower().endswith("s") and argument[:1] != "-")):
            yield at, (option, argument)
            first = False
        elif equals and value and is_secret_option(name) and not _stays(name, value):
            yield at, (name, value)
            option = ""
        else:
            option = argument if argument.startswith("-") and not equals and is_secret_option(argument) else ""
            first = True


def _masked_argument(argument: str, option: str, value: str) -> str:
    return f"{argument.removesuffix(value)}{_masked_value(option, value)}"


def _stays(option: str, value: str) -> bool:
    if option in USER_OPTIONS:
        return ":" not in value
    return not is_password_name(option) and is_plain(value)


def _masked_value(option: str, value: str) -> str:
    return f"{value.partition(':')[0]}:{MASK}" if option in USER_OPTIONS else MASK


def mask_text(text: str) -> str:
    """Text with keys, tokens, passwords and what looks like one replaced by `***`; lines stay lines."""
    return "\n".join(map(mask_line, without_private_keys(text).split("\n")))


def mask_values(value: Any) -> Any:
    """A value of JSON with every text in it masked; names of fields stay."""
    if isinstance(value, dict):
        return {name: mask_values(each) for name, each in value.items()}
    if isinstance(value, list):
        return [mask_values(each) for each in value]
    return mask_text(value) if isinstance(value, str) else value


def mask_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """The same for lines that follow each other, as many as come: a private key goes over several."""
    whole = list(lines)
    if any("\n" in line for line in whole):
        return tuple(map(mask_text, whole))
    return tuple(mask_text("\n".join(whole)).split("\n")) if whole else ()


def mask_line(line: str) -> str:
    """One line; where a colour hid a secret, the line loses its colours."""
    if "\x1b" in line or "\\" in line:
        plain = _WRITTEN_ESCAPE.sub("", without_escapes(line))
        if plain != line and (masked := _mask_plain_line(plain)) != plain:
            return masked
    return _mask_plain_line(line)


def _mask_plain_line(line: str) -> str:
    return without_known(without_shapes(mask_pairs(without_headers(line), quoted_only=False)))


def without_known(line: str) -> str:
    """Without values that were learnt."""
    return _learnt_pattern[0].sub(MASK, line) if _learnt_pattern else line
