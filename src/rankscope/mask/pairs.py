"""Values whose name says that they are secret: `name=value` in all its spellings, on one line."""

from __future__ import annotations

import re
from typing import NamedTuple

from rankscope.mask.extents import bare_end, bracket_end, quoted_at
from rankscope.mask.names import (
    MASK,
    is_bare_key,
    is_password_name,
    is_plain,
    is_secret_name,
    looks_random,
    may_name_secret,
)

# A name and what leads to its value: `name=`, `name: `, `"name": `, `\"name\": `, `["name"] = `, `name == `, `<name>`,
# `"name", `, `--name `. Spaces are counted up to a bound, so that no text takes long.
_PAIR = re.compile(
    r"""(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z0-9_.-]+)
    (?: (?P<colon>\\{0,8}["']?\s{0,40}[:：](?!=)\s{0,40})
      | (?P<compared>\\{0,8}["']?\s{0,40}\]?\s{0,40}(?:[=!]==?|\+=)\s{0,40})
      | (?P<equals>\\{0,8}["']?\s{0,40}\]?\s{0,40}:?=>?\s{0,40})
      | (?P<tag>>)
      | (?P<comma>\\{0,8}["']\s{0,40},\s{0,40})
      | (?P<gap>\\{0,8}["']?\s+(?!--)) )""",
    re.VERBOSE,
)
_HINTED = re.compile(r"""((?:(?:is|was|->|\|)\s{1,40})?\\{0,8}["'`]?)([^\s"'`|,;\\]{1,400})""")
_SHORT_WORD = re.compile(r"\S{1,400}")
_NEXT_WORD = re.compile(r"(\s{1,40})([^\s-]\S*)")
_IN_TAG = re.compile(r"[^<]{1,4096}(?=</)")
_ANNOTATION = re.compile(
    r"[A-Za-z_][\w.]*(?:\[[^\]=]{0,80}\])?(?:\s{0,9}\|\s{0,9}[\w.]{1,80}){0,9}\s{0,40}=(?!=)\s{0,40}"
)
_ASSIGNED = re.compile(r"\s{0,40}=(?!=)\s{0,40}")
_KEYWORD = re.compile(r"\s{0,40}[:=]")
_OPENING = re.compile(r"(?:[A-Za-z_][\w.]*)?[(\[{]")
# A scheme, what it is about, and any number of `name=value`.
_CREDENTIALS = re.compile(
    r"""[^\s"']+(?:\s{1,9}(?![\w-]{1,80}=\\{0,8}")[^\s"']+)?(?:[\s,]{1,9}[\w-]{1,80}=(?:\\{0,8}"[^"]*"|[^\s"']+))*"""
)
# "waiting for key: default_pg/0" is torch speaking of its store; "API key: ..." is a secret.
_KIND_OF_KEY = re.compile(
    r"\b(?:api|secret|access|private|auth|account|shared|signing|encryption|master|license|service|deploy|wandb|ssh)"
    r"[\s_-]{1,4}\Z",
    re.IGNORECASE,
)
# The value of a dictionary's key: words, the name of a tensor, a path, a tuple.
_ORDINARY = re.compile(r"""["'(\[{<].*|[A-Za-z_-]+[\W]*|(?:[\w*{}-]+[./:]+)+[\w*{}-]*\W*""")
_DEFAULTS = frozenset({"default", "const", "value"})
_DEFAULT = re.compile(r"\b(?:default|const|value)\s{0,9}=\s{0,9}\Z")
_FILE = re.compile(r"[~.]{0,2}/.*|[\w./-]+\.[a-z]{1,5}")


class _Found(NamedTuple):
    name: str
    by: str
    """The kind of what stands between name and value."""
    weak: bool = False
    """As `key` alone: only what can hardly be anything else is a secret."""


def mask_pairs(line: str, *, quoted_only: bool) -> str:
    """Values whose name says that they are secret; in code only those in quotes."""
    if not may_name_secret(line):
        return line
    parts: list[str] = []
    done = 0
    promised = False  # a name was given as a text: `"--token", default="..."`, `"name": "TOKEN", "value": "..."`
    while pair := _PAIR.search(line, done):
        parts.append(line[done : pair.end()])
        done = pair.end()
        found = _found(line, pair)
        if not found and promised and pair["name"] in _DEFAULTS and pair.lastgroup in ("colon", "equals"):
            found = _Found(pair["name"], pair.lastgroup)
        if not found:
            continue
        promised = promised or found.by == "comma"
        masked, end = _masked(line, done, found, quoted_only=quoted_only)
        parts.append(masked)
        done = end
    return "".join(parts) + line[done:]


def _found(line: str, pair: re.Match[str]) -> _Found | None:
    name, by = pair["name"], pair.lastgroup or ""
    if name[0] in "nrt" and line[pair.start() - 1 : pair.start()] == "\\":  # the end of a line, escaped
        name = name[1:]
    if not is_secret_name(name) or (by == "tag" and line[pair.start() - 1 : pair.start()] != "<"):
        return None
    if by == "gap" and not name.startswith("-"):
        by = "word"
    handled = by == "compared" and name.lower() == "token"  # `if token == "<pad>"`
    of_secret = _KIND_OF_KEY.search(line, max(0, pair.start() - 24), pair.start())
    return _Found(name, by, weak=handled or (is_bare_key(name) and not of_secret))


def _masked(line: str, at: int, found: _Found, *, quoted_only: bool) -> tuple[str, int]:
    """What stands there instead, and where the value ends; nothing, where it stays."""
    if found.by == "word":
        return ("", at) if quoted_only else _masked_word(line, at)
    if found.by == "tag":
        inside = _IN_TAG.match(line, at)
        return (MASK, inside.end()) if inside and not found.weak and not quoted_only else ("", at)
    if quoted_only and found.by == "colon" and (annotation := _ANNOTATION.match(line, at)):
        masked, end = _masked(line, annotation.end(), _Found(found.name, "equals", found.weak), quoted_only=True)
        return annotation[0] + masked, end
    if quoted := quoted_at(line, at):
        if found.by == "comma" and (quoted.text.startswith("-") or _KEYWORD.match(line, quoted.end)):
            return "", at
        stays = found.weak and _stays(found, quoted.text)
        return ("", at) if stays else (f"{quoted.open}{MASK}{quoted.close}", quoted.end)
    if found.by in ("comma", "compared"):
        return "", at
    return _masked_strings(line, at, found) if quoted_only else _masked_bare(line, at, found)


def _stays(found: _Found, value: str) -> bool:
    """Whether something so named may hold that, and it is no secret."""
    if found.weak:
        if found.by in ("colon", "compared"):
            return not looks_random(value.rstrip(",;)]}"))
        return is_plain(value) or (_ORDINARY.fullmatch(value) is not None and not looks_random(value))
    return not is_password_name(found.name) and is_plain(value)


def _masked_word(line: str, at: int) -> tuple[str, int]:
    """`the password is ...`, `| api_key | ...`: masked where it looks like nothing else."""
    hinted = _HINTED.match(line, at)
    secret = hinted and looks_random(hinted[2].rstrip(".:)]}"))
    return (hinted[1] + MASK, hinted.end()) if hinted and secret else ("", at)


def _masked_bare(line: str, at: int, found: _Found) -> tuple[str, int]:
    if at == len(line):
        return "", at
    if found.name.upper().endswith("AUTHORIZATION") and (credentials := _CREDENTIALS.match(line, at)):
        return MASK, credentials.end()
    if found.weak:
        word = _SHORT_WORD.match(line, at)
        return ("", at) if not word or _stays(found, word[0]) else (MASK, word.end())
    end = bare_end(line, at)
    if _stays(found, line[at:end]):
        return "", at
    masked = MASK
    if found.by == "colon" and (assigned := _ASSIGNED.match(line, end)):  # a type stood there: `api_key: str = "..."`
        value, end = _masked(line, assigned.end(), _Found(found.name, "equals"), quoted_only=False)
        masked += assigned[0] + value
    while (word := _NEXT_WORD.match(line, end)) and looks_random(word[2]):
        masked, end = f"{masked}{word[1]}{MASK}", word.end()
    return masked, end


def _masked_strings(line: str, at: int, found: _Found) -> tuple[str, int]:
    """In code: what stands in quotes inside of brackets, or of a call."""
    opening = _OPENING.match(line, at)
    if not opening or found.weak:
        return "", at
    end = bracket_end(line, opening.end() - 1)
    parts: list[str] = []
    done = at
    called = len(opening[0]) > 1
    while done < end:
        quoted = quoted_at(line, done) if line[done - 1] in "([{=:, \t" else None
        other = (
            called and quoted and may_be_argument(quoted.text) and not _DEFAULT.search(line, max(0, done - 24), done)
        )
        if quoted and not other and not _KEYWORD.match(line, quoted.end):
            parts.append(f"{quoted.open}{MASK}{quoted.close}")
        else:
            parts.append(line[done : quoted.end] if quoted else line[done])
        done = quoted.end if quoted else done + 1
    return "".join(parts), done


def may_be_argument(text: str) -> bool:
    """Of a function that finds the secret: the name of a variable, of a file, of an encoding."""
    word = text.isalpha() and text.islower()
    return len(text) < 6 or word or is_secret_name(text) or _FILE.fullmatch(text) is not None
