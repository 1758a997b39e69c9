"""Secrets out of texts, arguments and variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rankscope.mask.names import MASK, USER_OPTIONS, is_password_name, is_plain, is_secret_name, is_secret_option
from rankscope.mask.shapes import without_headers, without_private_keys, without_shapes

# A name and what leads to its value: `name=`, `name: `, `"name": `, `["name"] = `, `"name", `, `--name `.
# Spaces are counted up to a bound, so that no text takes long.
_PAIR = re.compile(
    r"""(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z0-9_.-]+)
    (?: (?P<colon>["']?\s{0,40}:\s{0,40})
      | (?P<equals>["']?\s{0,40}\]?\s{0,40}=(?!=)\s{0,40})
      | (?P<comma>["']\s{0,40},\s{0,40})
      | (?P<gap>\s+(?!--)) )""",
    re.VERBOSE,
)
_QUOTED = re.compile(
    r"""(?P<open>[fFrRbBuU]{0,2}(?P<quote>\"{3}|'{3}|"|'))(?P<text>(?:\\.|(?!(?P=quote)).)+)(?P<close>(?P=quote)|$)"""
)
_BARE = re.compile(r"\S+")

_LEAST_LEARNT = 6
_MOST_LEARNT = 500
_learnt: set[str] = set()
_learnt_pattern: list[re.Pattern[str]] = []


def learn(arguments: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
    """From now on the values that these call secret are masked wherever they stand, in any text.

    Not those that could be anything: short ones, numbers, plain words, names of files.
    """
    named = {value for name, value in (variables or {}).items() if is_secret_name(name)}
    named |= set(_values_of_secret_options(arguments))
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
    masked: list[str] = []
    option = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if option and not argument.startswith("--") and not _stays(option, argument):
            masked.append(_masked_value(option, argument))
            option = ""
        elif equals and value and is_secret_option(name) and not _stays(name, value):
            masked.append(f"{name}={_masked_value(name, value)}")
            option = ""
        else:
            masked.append(mask_text(argument))
            option = argument if argument.startswith("-") and not equals and is_secret_option(argument) else ""
    return masked


def _values_of_secret_options(arguments: Sequence[str]) -> Iterator[str]:
    for argument, following in zip(arguments, (*arguments[1:], ""), strict=True):
        name, equals, value = argument.partition("=")
        if not is_secret_option(name):
            continue
        if not equals:
            value = following if argument.startswith("-") and not following.startswith("--") else ""
        yield value.partition(":")[2] if name in USER_OPTIONS else value


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
    return without_known(without_shapes(mask_pairs(without_headers(line), quoted_only=False)))


def without_known(line: str) -> str:
    """Without values that were learnt."""
    return _learnt_pattern[0].sub(MASK, line) if _learnt_pattern else line


def mask_pairs(line: str, *, quoted_only: bool) -> str:
    """Values whose name says that they are secret; in code only those in quotes."""
    parts: list[str] = []
    done = 0
    while pair := _PAIR.search(line, done):
        parts.append(line[done : pair.end()])
        done = pair.end()
        if not _announces_secret(pair):
            continue
        if quoted := _QUOTED.match(line, done):
            parts.append(f"{quoted['open']}{MASK}{quoted['close']}")
            done = quoted.end()
        elif not quoted_only and not pair["comma"] and (bare := _BARE.match(line, done)):
            if not is_password_name(pair["name"]) and is_plain(bare[0]):
                continue
            parts.append(MASK)
            done = bare.end()
    return "".join(parts) + line[done:]


def _announces_secret(pair: re.Match[str]) -> bool:
    name = pair["name"]
    if pair["gap"] and not name.startswith("-"):
        return False
    # "waiting for key: default_pg/0" is torch speaking of its store, not a secret.
    if pair["colon"] and name.lower() == "key":
        return False
    return is_secret_name(name)
