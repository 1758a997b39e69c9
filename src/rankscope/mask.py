"""Takes secrets out of text before it becomes evidence. Masks too much rather than too little."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MASK = "***"

# Inside any name these give it away; the short words below would hit KEYBOARD, TOKENIZERS or AUTHOR.
_ANYWHERE = ("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "CREDENTIAL", "APIKEY", "AUTHTOKEN", "ACCESSKEY")
_WORDS = frozenset({"KEY", "TOKEN", "AUTH", "OAUTH", "AUTHORIZATION", "COOKIE", "COOKIES"})
_LAST_WORDS = frozenset({"PWD", "PASS"})
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_WORD = re.compile(r"[^A-Za-z0-9]+")
_ERROR_NAME = re.compile(r"(?:Error|Exception|Warning)$")

_SHAPES = re.compile(
    r"""(?<![A-Za-z0-9_])(?:
        hf_[A-Za-z0-9]{16,}
      | sk-[A-Za-z0-9_-]{16,}
      | (?:AKIA|ASIA)[A-Z0-9]{16}
      | gh[pousr]_[A-Za-z0-9]{16,}
      | github_pat_[A-Za-z0-9_]{20,}
      | glpat-[A-Za-z0-9_-]{16,}
      | xox[abprs]-[A-Za-z0-9-]{10,}
      | AIza[A-Za-z0-9_-]{30,}
      | (?<!-)eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*
    )""",
    re.VERBOSE,
)
_URL_PASSWORD = re.compile(r"((?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]+://[^\s/:@]*:)[^\s/]+@")
_AUTHORIZATION = re.compile(
    r"""(authorization["']?\s*[:=]\s*["']?)(?:(?:bearer|basic|token|digest)\s+)?[^\s"']+""", re.IGNORECASE
)
_BEARER = re.compile(r"""\b(bearer\s+)[^\s"']{6,}""", re.IGNORECASE)
_COOKIE = re.compile(r"""((?:set-)?cookie["']?:\s*).+""", re.IGNORECASE)

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


def is_secret_name(name: str) -> bool:
    """Whether something of that name holds a secret: WANDB_API_KEY, but not TOKENIZERS_PARALLELISM."""
    if _ERROR_NAME.search(name):
        return False
    upper = name.upper()
    if any(part in upper.replace("_", "").replace("-", "") for part in _ANYWHERE):
        return True
    words = [word.upper() for word in _NOT_WORD.split(_CAMEL.sub("_", name)) if word]
    return any(word in _WORDS for word in words) or (len(words) > 1 and words[-1] in _LAST_WORDS)


def mask_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """A copy with the values of secret variables masked, and secrets inside other values too."""
    return {name: MASK if is_secret_name(name) else mask_text(value) for name, value in variables.items()}


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line with the values of secret options masked, whatever spaces they hold."""
    masked: list[str] = []
    secret_follows = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        option = name.lstrip("-")
        if secret_follows and not argument.startswith("--"):
            masked.append(MASK)
            secret_follows = False
        elif equals and value and is_secret_name(option):
            masked.append(f"{name}={MASK}")
            secret_follows = False
        else:
            masked.append(mask_text(argument))
            secret_follows = argument.startswith("-") and not equals and is_secret_name(option)
    return masked


def mask_text(text: str) -> str:
    """Text with keys, tokens, passwords and what looks like one replaced by `***`, line by line."""
    return "\n".join(_mask_line(line) for line in text.split("\n"))


def mask_code(text: str) -> str:
    """The same for source code: only text inside quotes changes, so `sorted(rows, key=size)` still parses."""
    return "\n".join(_mask_shapes(_mask_pairs(line, quoted_only=True)) for line in text.split("\n"))


def _mask_line(line: str) -> str:
    line = _COOKIE.sub(rf"\g<1>{MASK}", _AUTHORIZATION.sub(rf"\g<1>{MASK}", line))
    line = _BEARER.sub(rf"\g<1>{MASK}", line)
    return _mask_shapes(_mask_pairs(line, quoted_only=False))


def _mask_shapes(line: str) -> str:
    return _SHAPES.sub(MASK, _URL_PASSWORD.sub(rf"\g<1>{MASK}@", line))


def _mask_pairs(line: str, *, quoted_only: bool) -> str:
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
