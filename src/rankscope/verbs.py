"""What a verb of the command line is, and how a package brings one.

The core has its own in cli.py. Others come by the entry point group `rankscope.verbs`: the name of the entry is the
verb, its value a `Verb`. The module that holds it is imported for `rankscope --help`, and should import nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankscope.errors import UsageError

if TYPE_CHECKING:
    from importlib import metadata

GROUP = "rankscope.verbs"


@dataclass(frozen=True, slots=True)
class Verb:
    does: str
    """For the list of verbs; one line, or two."""
    example: str
    command: Callable[[list[str]], int]
    """Takes the arguments after the verb and returns the exit code."""


def brought_verbs() -> dict[str, metadata.EntryPoint]:
    """Verbs of installed packages by their names, in their own order; not loaded."""
    # Not above: what is imported there is imported before anybody minds Ctrl-C.
    from importlib import metadata

    return {entry.name: entry for entry in metadata.entry_points(group=GROUP)}


def load_verb(entry: metadata.EntryPoint) -> Verb:
    """Raises UsageError where it cannot be had, with the package to look at."""
    package = entry.dist.name if entry.dist is not None else "the package that brings it"
    try:
        verb = entry.load()
    except Exception as error:
        raise UsageError(f"the verb '{entry.name}' of {package} cannot be loaded: {error!r}") from error
    if not isinstance(verb, Verb):
        raise UsageError(f"the verb '{entry.name}' of {package} is not a rankscope.verbs.Verb: {entry.value}")
    return verb
