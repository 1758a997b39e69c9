"""What a test asks for with `@pytest.mark.ranks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from rankscope.spelling import nearest

_PARAMETERS = frozenset({"backend", "timeout", "stall", "reuse"})
MOST_RANKS = 1024
_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
"""Those of torch. Others may be registered; what is nearly one of these is a slip."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a test asks for with its mark."""

    ranks: int
    backend: str | None = None
    """A process group of this backend is made before the body runs, and ended after it."""
    timeout_s: float = 300.0
    stall_s: float = 5.0
    """Stillness after which a rank that others wait for counts as hanging, where it cannot be proven."""
    reuse: bool = False
    """Tests that follow one another and ask for the same share their ranks and the process group."""


def read_mark(mark: pytest.Mark) -> Wanted:
    """Raises ValueError with what is wrong with it."""
    unknown = set(mark.kwargs) - _PARAMETERS
    if len(mark.args) != 1 or unknown:
        named = f", and no {', '.join(sorted(unknown))}" if unknown else ""
        raise ValueError(f"@pytest.mark.ranks takes the number of ranks, backend, timeout, stall and reuse{named}")
    number: Any = mark.args[0]
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"@pytest.mark.ranks({number!r}): give 1 rank or more")
    if number > MOST_RANKS:
        raise ValueError(f"@pytest.mark.ranks({number}): all of them run on this machine; give at most {MOST_RANKS}")
    backend = mark.kwargs.get("backend")
    if backend is not None and (not isinstance(backend, str) or not backend):
        raise ValueError(f"@pytest.mark.ranks(backend={backend!r}): write backend='gloo' or 'nccl'")
    close = nearest(backend, _BACKENDS) if backend and backend not in _BACKENDS else ""
    if close:
        raise ValueError(f"@pytest.mark.ranks(backend={backend!r}): there is no such backend{close}")
    reuse = mark.kwargs.get("reuse", False)
    if not isinstance(reuse, bool):
        raise ValueError(f"@pytest.mark.ranks(reuse={reuse!r}): write reuse=True or leave it out")
    if reuse and backend is None:
        raise ValueError("@pytest.mark.ranks(reuse=True): ranks that stay meet in a process group; add backend='gloo'")
    return Wanted(
        ranks=number,
        backend=backend,
        timeout_s=_seconds(mark, "timeout", 300.0),
        stall_s=max(1.0, _seconds(mark, "stall", 5.0)),
        reuse=reuse,
    )


def _seconds(mark: pytest.Mark, name: str, otherwise: float) -> float:
    given: Any = mark.kwargs.get(name, otherwise)
    fits = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not fits or not 0 < given < float("inf"):
        raise ValueError(f"@pytest.mark.ranks({name}={given!r}): give seconds, as {name}={otherwise:g}")
    return float(given)
