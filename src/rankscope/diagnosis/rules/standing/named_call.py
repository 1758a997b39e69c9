"""The main thread stands in a well-known call of a package, and waits there for the package's own threads."""

from __future__ import annotations

from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts.standing import AwaitsService, StandsIn
from rankscope.diagnosis.rules.standing.frames import above_user, in_module, library_call, package_of
from rankscope.diagnosis.rules.standing.locks import polls_lock_file
from rankscope.diagnosis.rules.standing.stages import open_stage
from rankscope.diagnosis.rules.standing.stand import SERVICE, Stand, movement
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import current_where, newest_main_thread
from rankscope.evidence.model import RankEvidence

_WAITS = (
    ("threading.py", frozenset({"wait", "wait_for", "join", "_wait_for_tstate_lock", "acquire"})),
    ("concurrent/futures/_base.py", frozenset({"result", "exception", "wait"})),
    ("queue.py", frozenset({"get"})),
)
_OUTSIDE = frozenset({"logger", "tokenizer", "model", "dataset"})
"""Kinds of stages whose calls ask a service outside the job."""


def named_call(rank: RankEvidence) -> Stand | None:
    """What waits is a lock or a thread of the package's own; what it waits for is the service behind it."""
    stage = open_stage(rank.progress) if rank.progress is not None else None
    main = newest_main_thread(rank)
    if stage is None or stage.kind not in _OUTSIDE or not stage.site or main is None:
        return None
    sample = rank.processes[-1] if rank.processes else None
    if (sample is not None and sample.waits_for_lock is not None) or polls_lock_file(main.frames):
        return None  # a file lock: who holds it is the question
    inner = above_user(main.frames)
    if not inner or package_of(inner[-1]) is None:
        return None
    if not any(in_module(frame, *wait) for frame in inner for wait in _WAITS):
        return None
    called = library_call(main.frames)
    remotes = sorted({socket for child in rank.children if child.processes for socket in child.processes[-1].sockets})
    return Stand(
        cause="blocked-call",
        at=current_where(rank) or Where(stage.site[0].file, stage.site[0].line, stage.site[0].function),
        doing=AwaitsService(stage.label, tuple(remotes[:3])),
        because=(*((StandsIn(call=called),) if called else ()), *movement(rank)),
        fix=(Advice("service-answers", label=stage.label),),
        explains=SERVICE,
    )
