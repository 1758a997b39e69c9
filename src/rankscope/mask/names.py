"""Which names announce a secret."""

from __future__ import annotations

import re
from functools import lru_cache

MASK = "***"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Inside any name these give it away; the short words below would hit KEYBOARD, TOKENIZERS or AUTHOR.
_ANYWHERE = (
    *("PASSWORD", "PASSWD", "PASSPHRASE", "PASSCODE", "SECRET", "CREDENTIAL", "APIKEY", "ACCESSKEY", "PRIVATEKEY"),
    *("AUTHTOKEN", "ACCESSTOKEN", "REFRESHTOKEN", "CONNECTIONSTRING", "SHAREDACCESSSIGNATURE"),
)
_WORDS = frozenset({"AUTH", "OAUTH", "AUTHORIZATION", "COOKIE", "COOKIES", "JWT", "BEARER"})
_LAST_WORDS = frozenset({"PWD", "PASS", "PW", "PAT", "DSN"})
_OPTIONS = frozenset({"pwd", "pass", "pw"})
# How the value is written comes after what it is: SIGNING_KEY_BASE64.
_FORMS = frozenset({"BASE64", "B64", "HEX", "PEM", "DER", "RAW", "JSON"})

# What stands before TOKEN, KEY, PASS or PW, apart (`pad_token`) or in one word (`padtoken`), where it is no secret.
_BEFORE = {
    "TOKEN": _words(
        "PAD EOS BOS UNK SEP CLS MASK SPECIAL IMAGE VIDEO AUDIO NEXT NUM MAX MIN PER CLASS START END STOP FIRST LAST "
        "NEW PREV PROMPT INPUT OUTPUT N DE PRE RE SUB MULTI WORD BYTE CHAR"
    ),
    "KEY": _words(
        "PRIMARY FOREIGN PUBLIC CACHE SORT PARTITION DICT STATE LOOKUP GROUP INDEX SHARD BUCKET ROUTING FEATURE LABEL "
        "BATCH METRIC COLUMN ROW PARAM TENSOR LAYER MODULE IMAGE TEXT AUDIO VIDEO TARGET LOSS MISSING UNEXPECTED "
        "DUPLICATE NEXT PREV TOTAL ARG KWARG COMPLETE SELECTOR RNG PRNG DISPATCH MONITOR ATTENTION ATTN QUERY NUM MAX "
        "MIN PER SUB HOT TURN MON TUR DON JOC HOC WHIS MIC LAC FLUN SMO PO HO"
    ),
    "PASS": _words(
        "FORWARD BACKWARD FIRST SECOND THIRD LAST NEXT ONE TWO SINGLE MULTI EACH PER ALL NUM NO LOW HIGH BAND GRAPH "
        "GRAD FUSION OPTIMIZATION TRAIN EVAL TEST WARMUP COM ENCOM BY SUR TRES UNDER OVER X"
    ),
    "PW": _words("CONV DW"),
    "PWD": _words("OLD"),
    "PAT": _words("LINE WORD NAME FILE URL NUM GLOB DATE TIME"),
}
# What language models call their parts is no secret: `token_embedding.weight`, `token_type_ids`.
_AFTER_TOKEN = _words(
    "EMBEDDING EMBEDDINGS EMBED EMBEDDER EMB TYPE TYPES IDS IDX COUNT COUNTS LENGTH LEN LIMIT BUDGET DIM LATENCY LOSS "
    "RATE ACCURACY LOGITS LOGPROBS MASK MIXER MIXING SHIFT POSITION POSITIONS DROPOUT CLASSIFICATION THROUGHPUT"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_WORD = re.compile(r"[^A-Za-z0-9]+")
_ERROR_NAME = re.compile(r"(?:Error|Exception|Warning)$")
_PLAIN = re.compile(
    r"(?:[-+]?[0-9][0-9.,_]{0,11}(?:e[-+]?[0-9]{1,3})?|None|True|False|null|true|false)[,;)\]}]*",
)
_BARE_KEY = re.compile(r"(?:[\w.-]*\.)?key_?[0-9]*", re.IGNORECASE)
# Every secret name holds one of these; looked for in lines of small letters.
_TRACE = re.compile(
    r"key|token|passw?|pw|secret|credential|auth|cookie|jwt|bearer|pat(?![a-z])|dsn|connection|signature"
)

USER_OPTIONS = frozenset({"-u", "--user", "-U", "--proxy-user"})
"""Of curl and its like, who take `name:password`."""


def may_name_secret(text: str) -> bool:
    """Quick: whether a secret name can be among these words at all."""
    return _TRACE.search(text.lower()) is not None


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether something of that name holds a secret: WANDB_API_KEY, but not TOKENIZERS_PARALLELISM."""
    return is_password_name(name) or _is_key_or_token(name)


@lru_cache(maxsize=4096)
def is_password_name(name: str) -> bool:
    """The value may be anything, a number too."""
    if _ERROR_NAME.search(name):
        return False
    upper = name.upper().replace("_", "").replace("-", "")
    return any(part in upper for part in _ANYWHERE)


def _is_key_or_token(name: str) -> bool:
    if _ERROR_NAME.search(name):
        return False
    words = [word for word in _NOT_WORD.split(_CAMEL.sub("_", name).upper()) if word]
    while len(words) > 1 and (words[-1] in _FORMS or words[-1].isdigit()):
        words.pop()
    if not words:
        return False
    words[-1] = words[-1].rstrip("0123456789") or words[-1]
    return any(word in _WORDS for word in words) or _holds_token(words) or _ends_in_secret(words)


def _holds_token(words: list[str]) -> bool:
    for before, word, after in zip(("", *words), words, (*words[1:], ""), strict=False):
        if word.endswith("TOKEN") and after not in _AFTER_TOKEN:
            return (word.removesuffix("TOKEN") or before) not in _BEFORE["TOKEN"]
    return False


def _ends_in_secret(words: list[str]) -> bool:
    """`key_padding_mask` and `num_key_value_heads` do not end in it."""
    last = words[-1]
    before = words[-2] if len(words) > 1 else ""
    for end in ("KEY", "PASS", "PWD", "PW"):
        if last.endswith(end) and last != end:
            return len(last) > len(end) + 1 and last.removesuffix(end) not in _BEFORE[end]
    stands = last == "KEY" or (before and last in _LAST_WORDS)
    return bool(stands) and before not in _BEFORE.get(last, ())


def is_bare_key(name: str) -> bool:
    """`key` and nothing more: more often of a dictionary than of a lock."""
    return _BARE_KEY.fullmatch(name) is not None


def is_secret_option(option: str) -> bool:
    """Whether an argument of that name, `--password` or `db.password`, is given a secret."""
    bare = option.lstrip("-")
    return is_secret_name(bare) or option in USER_OPTIONS or (option != bare and bare.lower() in _OPTIONS)


def is_plain(value: str) -> bool:
    """A number or a constant: no key or token looks like that."""
    return bool(_PLAIN.fullmatch(value))


_RANDOM = re.compile(r"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=(?:[^0-9]*[0-9]){2})[A-Za-z0-9+_~!$%^&*-]{14,}={0,2}")


def looks_random(value: str) -> bool:
    """Large and small letters and digits in one long word: a secret where something hints at one."""
    return len(value) >= 16 and _RANDOM.fullmatch(value) is not None
