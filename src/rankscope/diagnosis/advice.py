"""What to change, as a key and what it speaks of; the words for it are in `report/words`, beside those for facts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, init=False)
class Advice:
    """`Advice("continue-process", pid=4121)`."""

    key: str
    about: tuple[tuple[str, str | int], ...]

    def __init__(self, key: str, **about: str | int) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "about", tuple(about.items()))
