"""Which names announce a secret."""

from __future__ import annotations

import re

MASK = "***"

# Inside any name these give it away; the short words below would hit KEYBOARD, TOKENIZERS or AUTHOR.
_ANYWHERE = (
    *("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "CREDENTIAL", "APIKEY", "AUTHTOKEN", "ACCESSKEY", "PRIVATEKEY"),
    *("CONNECTIONSTRING", "SHAREDACCESSSIGNATURE"),
)
_WORDS = frozenset({"TOKEN", "AUTH", "OAUTH", "AUTHORIZATION", "COOKIE", "COOKIES", "JWT", "BEARER"})
_LAST_WORDS = frozenset({"PWD", "PASS", "PW", "PAT", "DSN"})
_OPTIONS = frozenset({"pwd", "pass", "pw"})
# What language models call their parts is no secret: `pad_token_id`, `max_token_length`.
_PARTS_OF_MODELS = frozenset(
    {"PAD", "EOS", "BOS", "UNK", "SEP", "CLS", "MASK", "SPECIAL", "IMAGE", "NEXT", "NUM", "MAX", "MIN", "PER"}
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_WORD = re.compile(r"[^A-Za-z0-9]+")
_ERROR_NAME = re.compile(r"(?:Error|Exception|Warning)$")
_PLAIN = re.compile(
    r"(?:[-+]?[0-9][0-9.,_]{0,11}(?:e[-+]?[0-9]{1,3})?|None|True|False|null|true|false)[,;)\]}]*",
)

USER_OPTIONS = frozenset({"-u", "--user"})
"""Of curl and its like, who take `name:password`."""


def is_secret_name(name: str) -> bool:
    """Whether something of that name holds a secret: WANDB_API_KEY, but not TOKENIZERS_PARALLELISM."""
    return is_password_name(name) or _is_key_or_token(name)


def is_password_name(name: str) -> bool:
    """The value may be anything, a number too."""
    if _ERROR_NAME.search(name):
        return False
    upper = name.upper().replace("_", "").replace("-", "")
    return any(part in upper for part in _ANYWHERE)


def _is_key_or_token(name: str) -> bool:
    if _ERROR_NAME.search(name):
        return False
    words = [word.upper() for word in _NOT_WORD.split(_CAMEL.sub("_", name)) if word]
    if not words or _PARTS_OF_MODELS.intersection(words[:-1]):
        return False
    if words[-1] == "KEY":  # `key_padding_mask` and `num_key_value_heads` do not end in it
        return True
    return any(word in _WORDS for word in words) or (len(words) > 1 and words[-1] in _LAST_WORDS)


def is_secret_option(option: str) -> bool:
    """Whether an argument of that name, `--password` or `db.password`, is given a secret."""
    bare = option.lstrip("-")
    return is_secret_name(bare) or option in USER_OPTIONS or (option != bare and bare.lower() in _OPTIONS)


def is_plain(value: str) -> bool:
    """A number or a constant: no key or token looks like that."""
    return bool(_PLAIN.fullmatch(value))
