"""Plain values to JSON that is always valid, whatever text the job brought in."""

from __future__ import annotations

import msgspec

from rankscope.evidence.unfolding import Unfolding


def to_json(value: object) -> bytes:
    """UTF-8 JSON of structs, dataclasses, tuples and dicts. Text that UTF-8 cannot say is written as `\\udc80`."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except UnicodeEncodeError:
        # File names that are no UTF-8 reach Python as lone surrogates: rare, so only then clean every string.
        return msgspec.json.encode(_sayable(msgspec.to_builtins(value, enc_hook=_plain)))


def _sayable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list | tuple):
        return [_sayable(item) for item in value]
    if isinstance(value, dict):
        return {_sayable(key): _sayable(item) for key, item in value.items()}
    return value


def _plain(value: object) -> object:
    if isinstance(value, Unfolding):
        return value.made()
    raise TypeError(f"no JSON is known of {type(value).__name__}")
