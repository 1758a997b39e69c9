"""What to change, in words; `{name}` is filled in with what the advice speaks of."""

from __future__ import annotations

from collections import UserDict

from rankscope.diagnosis.advice import Advice


class Wordings(UserDict[str, str]):
    """Key → words. Every file of words adds its own; none takes another's key."""

    def __setitem__(self, key: str, words: str) -> None:
        if key in self:
            raise ValueError(f"two files have words for the advice {key!r}")
        super().__setitem__(key, words)


ADVICE = Wordings()


def advise(advice: Advice) -> str:
    return ADVICE[advice.key].format(**dict(advice.about))
