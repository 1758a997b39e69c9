"""Whether a value is what a field takes, and what it then is."""

from __future__ import annotations

import json
import math
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin

from rankscope.errors import UsageError

MOST = 10**12
"""Whole numbers beyond this are slips of the keyboard: no run counts so far."""


def convert(value: Any, wanted: Any, key: str, place: str) -> Any:
    """The value as the field's type has it. Raises UsageError that says what the field takes."""
    found, fits = _fit(value, wanted)
    if not fits and isinstance(number := _number(value), (int, float)) and abs(number) >= MOST:
        raise UsageError(f"{place}: {key} is {_shown(value)}: give less than 10^12")
    if not fits:
        raise UsageError(f"{place}: {key} must be {describe(wanted)}, not {_shown(value)}{_nearest(value, wanted)}")
    return found


def from_text(text: str, wanted: Any) -> Any:
    """What a value given on the command line means for this type; the text itself where it means nothing else."""
    stripped = text.strip()
    if _takes_none(wanted) and stripped.lower() in ("null", "none", ""):
        return None
    inner = _without_none(wanted)
    if get_origin(inner) is tuple:
        if stripped.startswith("["):
            try:
                return json.loads(stripped)
            except ValueError:
                return text
        return [each.strip() for each in stripped.split(",") if each.strip()]
    if inner is bool:
        return {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }.get(stripped.lower(), text)
    return text


def describe(wanted: Any) -> str:
    """For people: `a whole number`, `one of 'a', 'b'`."""
    if _takes_none(wanted):
        return f"{describe(_without_none(wanted))} or null"
    if get_origin(wanted) is Literal:
        return "one of " + ", ".join(f"'{each}'" for each in get_args(wanted))
    if get_origin(wanted) is tuple:
        arguments = get_args(wanted)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return "a list of texts" if arguments[0] is str else f"a list, each {describe(arguments[0])}"
        return f"a list of {len(arguments)} numbers"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[wanted]


def _fit(value: Any, wanted: Any) -> tuple[Any, bool]:
    if value is None:
        return None, _takes_none(wanted)
    wanted = _without_none(wanted)
    if get_origin(wanted) is Literal:
        # YAML reads on, off, yes and no as truth values.
        if isinstance(value, bool):
            value = next((each for each in get_args(wanted) if each == ("on" if value else "off")), value)
        return value, value in get_args(wanted) and not isinstance(value, bool)
    if get_origin(wanted) is tuple:
        return _fit_list(value, get_args(wanted))
    if wanted is bool:
        return value, isinstance(value, bool)
    if wanted is str:
        return value, isinstance(value, str)
    number = _number(value)
    if number is None:
        return value, False
    if wanted is int:
        return int(number), number == int(number) and abs(number) < MOST
    return float(number), True


def _fit_list(value: Any, arguments: tuple[Any, ...]) -> tuple[Any, bool]:
    endless = len(arguments) == 2 and arguments[1] is Ellipsis
    if isinstance(value, str) and endless and arguments[0] is str:
        value = [value]
    if not isinstance(value, list) or (not endless and len(value) != len(arguments)):
        return value, False
    kinds = [arguments[0]] * len(value) if endless else list(arguments)
    fitted = [_fit(each, kind) for each, kind in zip(value, kinds, strict=True)]
    return tuple(each for each, _ in fitted), all(fits for _, fits in fitted)


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        # YAML 1.1 takes 3e-4 for a text, and everything on a command line is one.
        try:
            value = int(value.replace("_", "")) if value.replace("_", "").lstrip("+-").isdigit() else float(value)
        except ValueError:
            return None
    if isinstance(value, (int, float)) and math.isfinite(value):
        return value
    return None


def _takes_none(wanted: Any) -> bool:
    return get_origin(wanted) in (Union, types.UnionType) and type(None) in get_args(wanted)


def _without_none(wanted: Any) -> Any:
    if not _takes_none(wanted):
        return wanted
    return next(each for each in typing.get_args(wanted) if each is not type(None))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _nearest(value: Any, wanted: Any) -> str:
    import difflib

    inner = _without_none(wanted)
    if get_origin(inner) is not Literal or not isinstance(value, str):
        return ""
    close = difflib.get_close_matches(value, [str(each) for each in get_args(inner)], n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
