"""What to change, in words; `{name}` is filled in with what the advice speaks of."""

from __future__ import annotations

from rankscope.diagnosis.advice import Advice

ADVICE: dict[str, str] = {}


def advise(advice: Advice | str) -> str:
    return advice if isinstance(advice, str) else ADVICE[advice.key].format(**dict(advice.about))
