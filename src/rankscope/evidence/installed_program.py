"""Programs that were installed like libraries (`-m package`, console scripts): their lines are the user's too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from rankscope.evidence.model import Frame, RankEvidence
from rankscope.whose_code import is_user_file, program_in_stack

T = TypeVar("T")


def with_program(seen: RankEvidence) -> RankEvidence:
    """The same evidence, with the frames of an installed program as the user's; unchanged where there is none.

    Which package that is the rank's page tells, or else the outermost module of its stacks.
    """
    program = (seen.progress.program if seen.progress is not None else ()) or _in_stacks(seen)
    if not program:
        return seen
    return replace(
        seen,
        stacks=_marked(seen.stacks, program),
        children=_marked(seen.children, program),
        collectives=_marked(seen.collectives, program),
        exceptions=_marked(seen.exceptions, program),
        log=_marked(seen.log, program),
        crash_stack=_marked(seen.crash_stack, program),
    )


def _in_stacks(seen: RankEvidence) -> tuple[str, ...]:
    """A rank of which one stack shows a file of the user's has such files: then a package runs them."""
    found: tuple[str, ...] = ()
    for frames in _stacks(seen):
        if any(frame.user for frame in frames):
            return ()
        found = found or program_in_stack(
            (frame.file, frame.function) for frame in reversed(frames) if not frame.native
        )
    return found


def _stacks(seen: RankEvidence) -> Iterator[tuple[Frame, ...]]:
    yield from (thread.frames for sample in seen.stacks for thread in sample.threads)
    yield from (error.frames for error in seen.exceptions)
    yield seen.crash_stack
    yield from (call.frames for call in seen.collectives[-1:])


def _marked(value: T, program: tuple[str, ...]) -> T:
    """A piece of evidence whose frames in the program are the user's."""
    changed: Any = value
    if isinstance(value, Frame):
        if not value.user and not value.native and is_user_file(value.file, program):
            changed = replace(value, user=True)
    elif isinstance(value, tuple):
        changed = tuple(_marked(each, program) for each in value)
    elif isinstance(value, Struct):
        old = asdict(value)
        new = {name: _marked(each, program) for name, each in old.items() if isinstance(each, tuple | Struct)}
        changed = replace(value, **new) if any(new[name] != old[name] for name in new) else value
    return changed  # type: ignore[no-any-return]
