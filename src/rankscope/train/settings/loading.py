"""The configuration of a run: defaults, then a preset, then a file, then overrides, each value with its origin."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from rankscope.errors import UsageError
from rankscope.train.config import RunConfig, impossibilities
from rankscope.train.settings.files import Entry, json_entries, read_entries
from rankscope.train.settings.other_names import HINTS, meant
from rankscope.train.settings.values import convert, from_text

_PRESETS = resources.files("rankscope.train") / "presets"
_KEY = re.compile(r"\b[a-z_]+\.[a-z_]+\b")


@dataclass(frozen=True, slots=True)
class Loaded:
    config: RunConfig
    origin: dict[str, str]
    """For each `section.field`: `default`, `preset NAME`, `FILE:LINE`, `--override`, or an option of its own."""

    def uses(self, file: Path) -> bool:
        """Whether a value of it counts: it may hold comments alone, or be overridden everywhere."""
        return any(place.startswith(f"{file}:") for place in self.origin.values())


def load_config(
    preset: str | None,
    file: Path | None,
    overrides: Sequence[str],
    options: Mapping[str, tuple[str, object]] | None = None,
) -> Loaded:
    """`options`: those of the command line that stand for a key, with their values. They come last: they were meant.

    Raises UsageError with the key, where it stands, and the nearest right name.
    """
    named = [Entry(key, str(value), option) for option, (key, value) in (options or {}).items()]
    given = [*_preset(preset), *(read_entries(file) if file else []), *map(_override, overrides), *named]
    entries = [entry for each in given if (entry := meant(each)) is not None]
    spoken = {"--override", *(options or {})}
    values: dict[str, dict[str, Any]] = {}
    origin = dict.fromkeys(_fields(), "default")
    for entry in entries:
        wanted = _fields().get(entry.key)
        if wanted is None:
            raise UsageError(f"{entry.place}: {_unknown(entry.key)}")
        value = from_text(entry.value, wanted) if entry.place in spoken else entry.value
        section, name = entry.key.split(".")
        values.setdefault(section, {})[name] = convert(value, wanted, entry.key, entry.place)
        origin[entry.key] = f"preset {preset}" if entry.place.startswith(_preset_place(preset)) else entry.place
    config = _build(values)
    _refuse_impossible(config, origin, {entry.key: entry.place for entry in entries})
    return Loaded(config, origin)


def preset_names() -> list[str]:
    return sorted(each.name.removesuffix(".json") for each in _PRESETS.iterdir() if each.name.endswith(".json"))


def render_config(loaded: Loaded) -> str:
    """A configuration file that gives this very configuration, each line with its origin as a comment."""
    sections = dataclasses.asdict(loaded.config)
    lines = ["{"]
    for number, (section, fields) in enumerate(sections.items()):
        lines.append(f'  "{section}": {{')
        for place, (name, value) in enumerate(fields.items()):
            comma = "," if place < len(fields) - 1 else ""
            text = f'    "{name}": {json.dumps(value)}{comma}'
            lines.append(f"{text:<56}  // {loaded.origin[f'{section}.{name}']}")
        lines.append("  }," if number < len(sections) - 1 else "  }")
    return "\n".join([*lines, "}"]) + "\n"


@cache
def _fields() -> dict[str, Any]:
    """Type of each `section.field`."""
    found = {}
    for section, kind in get_type_hints(RunConfig).items():
        for name, wanted in get_type_hints(kind).items():
            found[f"{section}.{name}"] = wanted
    return found


def _build(values: dict[str, dict[str, Any]]) -> RunConfig:
    default = RunConfig()
    return dataclasses.replace(
        default,
        **{section: dataclasses.replace(getattr(default, section), **given) for section, given in values.items()},
    )


def _preset(name: str | None) -> list[Entry]:
    if name is None:
        return []
    if name not in preset_names():
        close = difflib.get_close_matches(name, preset_names(), n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UsageError(f"no preset '{name}'; {hint}there are {', '.join(preset_names())}")
    text = (_PRESETS / f"{name}.json").read_text("utf-8")
    place = _preset_place(name)
    return [Entry(key, value, f"{place}{line}") for key, value, line in json_entries(text, Path(f"{name}.json"))]


def _preset_place(name: str | None) -> str:
    return f"preset {name}:"


def _override(text: str) -> Entry:
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise UsageError(f"--override {text}: write section.name=value, as in training.batch_size=4")
    if re.search(r"[\s,;]\w+\.\w+=", value):
        raise UsageError(f"--override {text}: give each of them an --override of its own")
    return Entry(key.strip(), value, "--override")


def _unknown(key: str) -> str:
    fields = _fields()
    sections = {each.split(".")[0] for each in fields}
    section, _, name = key.partition(".")
    if section in sections and not name:
        return f"'{section}' is a section: put its keys into it, in braces or indented"
    here = HINTS.get(key.rpartition(".")[2])
    if here is None:
        same_name = [each for each in fields if each.split(".")[1] == (name or section)]
        close = same_name or difflib.get_close_matches(key, fields, n=1, cutoff=0.6)
        by_name = difflib.get_close_matches(name or section, [each.split(".")[1] for each in fields], n=1)
        if not close and by_name:
            close = [each for each in fields if each.split(".")[1] == by_name[0]]
        here = close[0] if close else None
    hint = f"; did you mean '{here}'?" if here else f"; sections are {', '.join(sorted(sections))}"
    return f"there is no '{key}'{hint}"


def _refuse_impossible(config: RunConfig, origin: dict[str, str], places: dict[str, str]) -> None:
    found = impossibilities(config)
    if not found:
        return
    key, reason = found[0].key, found[0].reason
    # Where a default does not go with what somebody wrote, what was written is the place to look at.
    keys = [key, *_KEY.findall(reason)]
    place = next((places[each] for each in keys if origin.get(each, "default") != "default"), None)
    raise UsageError(f"{place}: {key} {reason}" if place else f"{key} {reason}")
