"""Plain values as YAML: enough for manifests, without a dependency."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

Value = str | int | bool | None | Mapping[str, "Value"] | Sequence["Value"]


def to_yaml(value: Value, indent: int = 0) -> str:
    """Blocks for mappings, lists and texts of several lines; every other text in double quotes where it needs them."""
    pad = "  " * indent
    if isinstance(value, Mapping):
        return "".join(f"{pad}{key}:{_after_key(item, indent)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "".join(_item(item, indent) for item in value)
    return f"{pad}{_scalar(value)}\n"


def _after_key(value: Value, indent: int) -> str:
    if isinstance(value, str) and "\n" in value:
        lines = value.rstrip("\n").split("\n")
        return " |\n" + "".join(f"{'  ' * (indent + 1)}{line}\n" if line else "\n" for line in lines)
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str)):
        return f"\n{to_yaml(value, indent + 1)}" if value else (" {}\n" if isinstance(value, Mapping) else " []\n")
    return f" {_scalar(value)}\n"


def _item(value: Value, indent: int) -> str:
    pad = "  " * indent
    if isinstance(value, Mapping) and value:
        block = to_yaml(value, indent + 1)
        return f"{pad}- {block[len(pad) + 2 :]}"
    return f"{pad}-{_after_key(value, indent)}"


def _scalar(value: str | int | bool | None) -> str:
    # JSON's scalars are YAML's, and a quoted text is never taken for a number or a truth value.
    return json.dumps(value, ensure_ascii=False)
