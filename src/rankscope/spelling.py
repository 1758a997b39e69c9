"""What argparse complains about, with the word to write instead."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from typing import Any

_VALUES = {
    "int": "is no whole number: write it in digits, as 4",
    "float": "is no number: write it in digits, as 2.5",
}


class Once(argparse.Action):
    """An option of which the first of two would be dropped without a word."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} is given twice: leave one out")
        setattr(namespace, self.dest, values)


def mended(message: str, parser: argparse.ArgumentParser) -> str:
    """The complaint of the parser in words that help; as it is where nothing can be added."""
    if match := re.fullmatch(r"argument (\S+): invalid (int|float|_?\w+) value: '(.*)'", message):
        kind = _VALUES.get(match[2])
        return message if kind is None else f"{match[1]}: '{match[3]}' {kind}"
    if match := re.fullmatch(r"argument (\S+): expected one argument", message):
        return f"{match[1]} needs a value: {match[1]} {_metavar(parser, match[1])}"
    if match := re.fullmatch(r"ambiguous option: (\S+) could match (.*)", message):
        options = [option.strip() for option in match[2].split(",")]
        if len({id(parser._option_string_actions.get(option)) for option in options}) == 1:
            return f"{match[1]} is not known; did you mean '{options[0]}'?"
    if message.startswith("unrecognized arguments: "):
        first = message.partition(": ")[2].split()[0]
        return f"{message}{nearest(first.partition('=')[0], parser._option_string_actions, '; ')}"
    return message


def nearest(word: str, known: Iterable[str], before: str = ", ") -> str:
    """`, did you mean 'train'?`, or nothing."""
    import difflib  # as late as this: few commands have a mistake

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"{before}did you mean '{close[0]}'?" if close else ""


def _metavar(parser: argparse.ArgumentParser, option: str) -> str:
    action = parser._option_string_actions.get(option.split("/", maxsplit=1)[0])
    if action is None:
        return "VALUE"
    shown = action.metavar if isinstance(action.metavar, str) else None
    return shown or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
