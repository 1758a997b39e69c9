"""Whom `--notify` names: an address or a command."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from rankscope.mask import learn_values
from rankscope.report.notices.otlp import address_of

Shape = Literal["json", "slack", "discord", "teams", "otlp", "command"]
"""What the receiver understands; `json` is the verdict itself."""
_CHATS: tuple[tuple[Shape, str], ...] = (
    ("slack", r"hooks\.slack(-gov)?\.com/"),
    ("discord", r"(\w+\.)?discord(app)?\.com/api/(v\d+/)?webhooks/"),
    ("teams", r"([\w.-]+\.)?(webhook\.office\.com|logic\.azure\.com|api\.powerplatform\.com)[:/]"),
)
_PREFIX = re.compile(r"(slack|discord|teams|otlp)\+(?=https?://)")
_SHELL = re.compile(r"[$`|&;<>(){}*?~=\n\"']")


@dataclass(frozen=True, slots=True)
class Target:
    shape: Shape
    to: str
    """The address, or the command."""

    @property
    def name(self) -> str:
        """Without what must not be shown: the path of such an address is a password as a rule."""
        if self.shape == "command":
            return self.to.split(maxsplit=1)[0]
        address = urlsplit(self.to)
        port = f":{address.port}" if address.port is not None else ""
        return f"{address.scheme}://{address.hostname}{port}"


def parse_target(text: str) -> Target:
    """As a type of argparse: what can be neither an address nor a command is refused with the reason."""
    prefix = _PREFIX.match(text)
    address = text[prefix.end() :] if prefix else text
    if "://" not in address.split(" ", 1)[0]:
        return _command(text)
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in address):
        raise argparse.ArgumentTypeError("the address must begin with https://HOST or http://HOST")
    learn_values([parts.path.lstrip("/"), parts.query, parts.password or ""])
    if prefix:
        shape = _named(prefix[1])
        return Target(shape, address_of(address) if shape == "otlp" else address)
    rest = f"{parts.hostname}{address.partition('://')[2].partition(parts.netloc)[2] or '/'}"
    return Target(next((shape for shape, pattern in _CHATS if re.match(pattern, rest)), "json"), address)


def _named(prefix: str) -> Shape:
    return next((shape for shape, _ in _CHATS if shape == prefix), "otlp")


def _command(text: str) -> Target:
    if not text.strip():
        raise argparse.ArgumentTypeError("give an address or a command")
    first = text.split(maxsplit=1)[0]
    if not _SHELL.search(first) and shutil.which(first) is None and first not in _BUILT_IN:
        raise argparse.ArgumentTypeError(
            f"no program '{first}' is on the path or at that place (current folder: {os.getcwd()})"
        )
    try:
        shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"the command cannot be read by a shell: {str(error).lower()}") from None
    return Target("command", text)


_BUILT_IN = frozenset({".", ":", "cd", "eval", "exec", "export", "if", "read", "set", "test", "umask", "while"})
