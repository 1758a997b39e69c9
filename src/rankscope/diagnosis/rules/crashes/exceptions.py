"""Classifies an exception that ended a rank, or that is pending in one: cause, line and fix."""

from __future__ import annotations

import re
from dataclasses import replace

from rankscope.diagnosis.code import CodeReader
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.crashes.known_error import Message
from rankscope.diagnosis.rules.crashes.known_errors import recognise
from rankscope.diagnosis.rules.standing.frames import plain_name, source_line
from rankscope.diagnosis.verdict import Certainty, Where
from rankscope.diagnosis.views import innermost_user_frame, place, rank_culprit, where
from rankscope.evidence.model import Evidence, Frame, RaisedException, RankEvidence
from rankscope.evidence.tracebacks import find_tracebacks

_PATH = re.compile(r"'([^']+)'")
_WORKER = re.compile(r"in DataLoader worker process (\d+)")
_TRUNCATED = re.compile(
    r"PytorchStreamReader failed|failed finding central directory|File is not a zip file|Ran out of input"
    r"|pickle data was truncated|unexpected EOF|EOF marker|Compressed file ended before|incomplete metadata"
)
"""A file of which only the beginning is there."""
_MAKES_FOLDER = re.compile(r"\b(?:mkdir|makedirs)\b")
_IN_DISTRIBUTED = "/torch/distributed/"

_FIX: dict[str, tuple[str, ...]] = {
    "out-of-memory-host": (
        "use less memory on this rank: smaller batches, fewer loader workers, memory-mapped data",
        "raise the memory limit of the job or container",
    ),
    "out-of-memory-gpu": (
        "use less GPU memory: a smaller batch, gradient accumulation, activation checkpointing, lower precision",
        "see that no other process uses this GPU, and that each rank uses its own (torch.load(map_location=...))",
    ),
    "import-failed": (
        "install the module into the environment of every node, and start the job with that environment's Python",
    ),
    "path-race": (
        "create it on one rank and let the others wait at a barrier, or os.makedirs(path, exist_ok=True)",
        "write to a temporary name and rename it, so that nobody sees half of it",
    ),
    "killed": ("find who sends the signal: a person, the scheduler, a time limit",),
    "dataloader-stuck": ("find what the loader's workers wait for, or raise DataLoader(timeout=...)",),
}


def text_of(exception: RaisedException) -> str:
    return f"{exception.type}: {exception.message}"


def is_communication(exception: RaisedException) -> bool:
    """Raised inside torch.distributed, beneath any code of the user."""
    inner = []
    for frame in exception.frames:
        if frame.user:
            break
        inner.append(frame)
    return any(_IN_DISTRIBUTED in frame.file for frame in inner)


def message_of(exception: RaisedException) -> Message | None:
    """The table's entry for an exception; for the text of an exception passed on by a worker, that one's."""
    return recognise(text_of(exception), communication=is_communication(exception))


def original_of(rank: RankEvidence, exception: RaisedException) -> RaisedException:
    """The exception that a worker process raised and `exception` only passed on; else itself."""
    if "Traceback (most recent call last)" not in exception.message:
        return exception
    found = find_tracebacks(exception.message.splitlines())
    if found:
        return replace(found[-1], at=exception.at)
    # The message may have been cut: the output has the whole of it, in the order in which it was raised.
    kind = exception.type.rpartition(".")[2]
    earlier = [each for each in rank.exceptions if each.source == "output" and each.type.rpartition(".")[2] == kind]
    return replace(earlier[0], at=exception.at) if len(earlier) > 1 else exception


def explain_exception(rank: RankEvidence, exception: RaisedException, evidence: Evidence) -> Finding:
    """What an exception of a rank means, whether it ended the rank or is still being handled in it."""
    original = original_of(rank, exception)
    own = any(frame.user for frame in original.frames)
    at = where_raised(original.frames if own else exception.frames) or where_raised(original.frames)
    cause, known = cause_of(rank, original, evidence)
    name = original.type.rpartition(".")[2]
    said = _first_line(original.message)
    doing = f"raised {name}" + (f": {said}" if said else "")
    if (worker := _WORKER.search(exception.message)) is not None:
        doing += f" (in data-loading worker {worker[1]})"
    pending = exception.source == "pending"
    how = "is being handled" if pending else "was not caught"
    fix = (known.fix if known is not None and known.fix else None) or _FIX.get(cause) or _general_fix(at)
    likely = cause in {"path-race", "address-unreachable", "collective-mismatch", "comm-error", "killed"}
    certainty: Certainty = "likely" if likely else "proven"
    return Finding(
        outcome="hang" if cause == "dataloader-stuck" else "crash",
        cause=cause,
        certainty=certainty,
        culprits=(rank_culprit(rank, doing, at),),
        summary=f"rank {rank.rank} raised {name} in {place(at)}" + (f": {said}" if said else ""),
        because=(f"{name} {how} on rank {rank.rank}, raised in {place(at)}", *_meaning(known)),
        fix=fix,
        alternatives=()
        if cause == "exception"
        else (Possibility("exception", "possible", f"seen as an exception it is {name} in {place(at)}"),),
        references=(known.reference,) if known is not None and known.reference else (),
    )


def cause_of(rank: RankEvidence, exception: RaisedException, evidence: Evidence) -> tuple[str, Message | None]:
    """The most special cause that the type and the text of an exception allow, with the table's entry."""
    kind = exception.type.rpartition(".")[2]
    if kind in {"MemoryError", "_ArrayMemoryError"}:
        return "out-of-memory-host", None
    if kind == "OutOfMemoryError":
        return "out-of-memory-gpu", None
    if kind in {"ModuleNotFoundError", "ImportError"}:
        return "import-failed", None
    if kind == "KeyboardInterrupt":
        return "killed", None
    if kind in {"FileExistsError", "FileNotFoundError"}:
        return ("path-race" if _lost_a_race(rank, exception, evidence) else "exception"), None
    if "DataLoader timed out after" in exception.message:
        return "dataloader-stuck", None
    known = message_of(exception)
    if _TRUNCATED.search(exception.message) and _read_half_written(rank, exception, evidence):
        return "path-race", None
    return (known.cause if known is not None and known.cause is not None else "exception"), known


def where_raised(frames: tuple[Frame, ...]) -> Where | None:
    """The innermost user frame; the innermost of all where the traceback has none of the user's."""
    found = innermost_user_frame(frames)
    if found is None:
        found = next((frame for frame in frames if not frame.native and not frame.file.startswith("<")), None)
    return where(found)


def _lost_a_race(rank: RankEvidence, exception: RaisedException, evidence: Evidence) -> bool:
    """Another rank must show that it had to do with the path: it passed the same line, or names the path."""
    others = [other for other in evidence.ranks if other.rank != rank.rank]
    kind = exception.type.rpartition(".")[2]
    found = _PATH.search(exception.message)
    if kind == "FileExistsError":
        user = innermost_user_frame(exception.frames)
        inner = exception.frames[0] if exception.frames else None
        made = inner is not None and plain_name(inner) in {"mkdir", "makedirs"}
        if not made and not _MAKES_FOLDER.search(source_line(evidence, user)):
            return False
        # Where every rank failed alike, nobody won: the folder was there before.
        return any(not _raised(other, "FileExistsError") for other in others)
    if found is None:
        return False
    path = found[1]
    return any(_names(other, path) for other in others)


def _read_half_written(rank: RankEvidence, exception: RaisedException, evidence: Evidence) -> bool:
    """A file of which only a part was there, on this rank alone, and not one of its own: somebody was still writing."""
    if any(
        _TRUNCATED.search(each.message) for other in evidence.ranks if other is not rank for each in other.exceptions
    ):
        return False
    code = CodeReader(evidence)
    line = source_line(evidence, innermost_user_frame(exception.frames))
    return bool(line) and len(evidence.ranks) > 1 and not code.speaks_of_rank(line)


def _raised(rank: RankEvidence, kind: str) -> bool:
    return any(each.type.rpartition(".")[2] == kind for each in rank.exceptions)


def _names(rank: RankEvidence, path: str) -> bool:
    """A rank that itself misses the path is no proof that it makes it."""
    if any(path in each.message for each in rank.exceptions if each.type.endswith("FileNotFoundError")):
        return False
    calls = [sample.syscall for sample in rank.processes if sample.syscall is not None]
    return (
        any(path in each.message for each in rank.exceptions)
        or any(path in line for line in (*rank.output_tail, *rank.error_tail))
        or any((call.target or "").startswith(path) for call in calls)
    )


def _meaning(known: Message | None) -> tuple[str, ...]:
    return (f"the text means: {known.meaning}",) if known is not None else ()


def _general_fix(at: Where | None) -> tuple[str, ...]:
    return (
        f"mend the error at {place(at)}; the other ranks' errors are its consequence",
        "if only one rank's data can raise it, handle it on all ranks alike, so that no rank is left waiting",
    )


def _first_line(message: str) -> str:
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return line if len(line) <= 160 else line[:159] + "…"
