"""One entry of the tables of known error texts."""

from __future__ import annotations

import re
from functools import cache

import msgspec

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.verdict import Role


class KnownError(msgspec.Struct, frozen=True):
    """An error text of which it is known what it signifies."""

    name: str
    """What it signifies is said in `report/words/known_errors.py` under this name."""
    pattern: str
    role: Role
    cause: str | None = None
    fix: tuple[Advice, ...] = ()
    reference: str | None = None
    communication_only: bool = False
    """The words alone may come from any socket or file: they count only from torch.distributed, gloo or NCCL."""
    waited: bool = False
    """Of a victim: its time ran out while it waited; otherwise its connection was lost."""

    def fits(self, text: str) -> bool:
        return _compiled(self.pattern).search(text) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # When it is first needed: most jobs leave no error text, and to compile all of them takes longer than their rules.
    return re.compile(pattern)


def entry(
    name: str,
    pattern: str,
    role: Role,
    cause: str | None = None,
    *fix: str,
    reference: str | None = None,
    communication_only: bool = False,
    waited: bool = False,
) -> KnownError:
    advice = tuple(map(Advice, fix))
    return KnownError(name, pattern, role, cause, advice, reference, communication_only, waited)
