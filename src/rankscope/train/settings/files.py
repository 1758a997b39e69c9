"""Reading configuration files (JSON with comments, YAML, TOML) into keys, values and line numbers."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from rankscope.errors import UsageError
from rankscope.given_paths import not_there


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    """`section.field`, or only `section` where no mapping stands there."""
    value: Any
    place: str
    """For people: `FILE:LINE`."""


def read_entries(path: Path) -> list[Entry]:
    """Raises UsageError with the line where the file is not what its name says."""
    suffix = path.suffix.lower()
    if path.exists() and not path.is_file():
        raise UsageError(f"the configuration file '{path}' cannot be read: it is no plain file")
    if path.exists() and suffix not in _READERS:
        raise UsageError(f"'{path}': a configuration file ends in .json, .yaml, .yml or .toml")
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(not_there(str(path), what="the configuration file")) from None
    except OSError as error:
        raise UsageError(f"the configuration file '{path}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the configuration file '{path}' is no text in UTF-8: write it anew as such") from error
    if not text.removeprefix("\ufeff").strip():
        raise UsageError(
            f"the configuration file '{path}' is empty: write sections of keys and values, or leave it out to take the "
            "preset alone"
        )
    try:
        found = _READERS[suffix](text, path)
    except RecursionError:
        raise UsageError(f"'{path}' is nested too deeply: a configuration is sections of keys and values") from None
    return _without_repetition([Entry(key, value, f"{path}:{line}") for key, value, line in found])


def json_entries(text: str, path: Path) -> list[tuple[str, Any, int]]:
    """Keys, values and lines of JSON with comments."""
    return _json(text, path)


def _without_repetition(entries: list[Entry]) -> list[Entry]:
    seen: dict[str, Entry] = {}
    for entry in entries:
        if entry.key in seen:
            first = seen[entry.key].place.rpartition(":")[2]
            raise UsageError(f"{entry.place}: '{entry.key}' is given twice, first in line {first}; leave one out")
        seen[entry.key] = entry
    return entries


# JSON, where // and /* */ are comments and a comma may stand before a closing bracket.

_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_LAST_COMMA = re.compile(r'"(?:[^"\\\n]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_SPACE = re.compile(r"\s*")


def _json(text: str, path: Path) -> list[tuple[str, Any, int]]:
    plain = _STRING_OR_COMMENT.sub(_blank_unless_string, text.removeprefix("\ufeff"))
    plain = _STRING_OR_LAST_COMMA.sub(_blank_unless_string, plain)
    try:
        begin = _skip(plain, 0)
        if begin == len(plain):
            return []
        if plain[begin] != "{":
            raise json.JSONDecodeError("a configuration is an object, { ... }", plain, begin)
        found: list[tuple[str, Any, int]] = []
        end = _skip(plain, _object(plain, begin, "", found))
        if end != len(plain):
            raise json.JSONDecodeError("something stands after the end", plain, end)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: not JSON: {error.msg} (column {error.colno})") from None
    return found


def _blank_unless_string(match: re.Match[str]) -> str:
    """Keeps every character's place, so that lines and columns stay true."""
    return match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0])


def _object(text: str, begin: int, prefix: str, found: list[tuple[str, Any, int]]) -> int:
    place = _skip(text, begin + 1)
    while text[place : place + 1] != "}":
        if text[place : place + 1] != '"':
            raise json.JSONDecodeError('expected a key in "quotes", or }', text, place)
        line = text.count("\n", 0, place) + 1
        name, place = scanstring(text, place + 1)
        place = _skip(text, place)
        if text[place : place + 1] != ":":
            raise json.JSONDecodeError("expected a colon after the key", text, place)
        place = _skip(text, place + 1)
        if text[place : place + 1] == "{":
            place = _object(text, place, f"{prefix}{name}.", found)
        else:
            value, place = json.JSONDecoder().raw_decode(text, place)
            found.append((prefix + name, value, line))
        place = _skip(text, place)
        if text[place : place + 1] == ",":
            place = _skip(text, place + 1)
        elif text[place : place + 1] != "}":
            raise json.JSONDecodeError("expected a comma or }", text, place)
    return place + 1


def _skip(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return place if match is None else match.end()


# YAML


def _yaml(text: str, path: Path) -> list[tuple[str, Any, int]]:
    try:
        import yaml
    except ImportError:
        raise UsageError(
            f"'{path}' needs the package PyYAML: pip install 'rankscope[train]', or write the configuration as JSON"
        ) from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return [] if node is None else list(_yaml_entries(yaml, node, "", path))
    except yaml.MarkedYAMLError as error:
        line = (error.problem_mark.line + 1) if error.problem_mark else 1
        raise UsageError(f"{path}:{line}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {str(error).partition(chr(10))[0]}") from None


def _yaml_entries(yaml: Any, node: Any, prefix: str, path: Path) -> Iterator[tuple[str, Any, int]]:
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{path}:{node.start_mark.line + 1}: a configuration is sections of keys and values")
    for name, value in node.value:
        key = prefix + str(name.value)
        if isinstance(value, yaml.MappingNode):
            yield from _yaml_entries(yaml, value, f"{key}.", path)
        else:
            loader = yaml.SafeLoader("")
            yield key, loader.construct_object(value, deep=True), name.start_mark.line + 1


# TOML

_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_.\"'\s-]+?)\s*=")
_AT_LINE = re.compile(r"at line (\d+)")


def _toml(text: str, path: Path) -> list[tuple[str, Any, int]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            tomllib = importlib.import_module("tomli")
        except ImportError:
            raise UsageError(
                f"'{path}' needs the package tomli on this Python: pip install 'rankscope[train]', or write JSON"
            ) from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _AT_LINE.search(str(error))
        raise UsageError(f"{path}:{found[1] if found else 1}: not TOML: {error}") from None
    lines = _toml_lines(text)
    return [(key, value, _line_of(key, lines)) for key, value in _flat(content, "")]


def _flat(content: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _toml_lines(text: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        if table := _TABLE.match(line):
            prefix = _unquoted(table[1]) + "."
            lines.setdefault(prefix[:-1], number)
        elif assignment := _ASSIGNMENT.match(line):
            lines.setdefault(prefix + _unquoted(assignment[1]), number)
    return lines


def _unquoted(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _line_of(key: str, lines: dict[str, int]) -> int:
    """Its own, or that of the inline table it stands in."""
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return lines.get(key, 1)


_READERS: dict[str, Callable[[str, Path], list[tuple[str, Any, int]]]] = {
    ".json": _json,
    ".jsonc": _json,
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": _toml,
}
