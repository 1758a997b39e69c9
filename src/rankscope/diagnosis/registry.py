"""Rules: functions `Case → Finding | None`, registered with the causes that they can find. All of them are asked."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rankscope.diagnosis.case import Case
from rankscope.diagnosis.causes import CAUSES
from rankscope.diagnosis.finding import Finding

Ask = Callable[[Case], Finding | None]


class Rule(msgspec.Struct, frozen=True):
    name: str
    causes: tuple[str, ...]
    ask: Ask


RULES: list[Rule] = []


def rule(*causes: str) -> Callable[[Ask], Ask]:
    """Registers a rule under the name of its function."""
    unknown = [cause for cause in causes if cause not in CAUSES]
    assert not unknown, f"not in the table of causes: {unknown}"

    def register(ask: Ask) -> Ask:
        RULES.append(Rule(ask.__name__, causes, ask))
        return ask

    return register
