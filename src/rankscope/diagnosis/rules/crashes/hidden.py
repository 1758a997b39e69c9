"""An exception that is being handled while its rank waits for others: it is what began it."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.crashes.exceptions import explain_exception
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.wait_graph import WaitGraph
from rankscope.evidence.model import Evidence, RaisedException, RankEvidence


def explain_hidden(evidence: Evidence, graph: WaitGraph, code: CodeReader) -> Finding | None:
    """A rank that handles an exception and waits for others meanwhile, as in `finally:`, hides what went wrong."""
    waiting = [seen for seen in evidence.ranks if graph.states[seen.rank].kind == "waiting" and seen.exit is None]
    for seen in waiting:
        pending = [
            error
            for error in seen.exceptions
            if error.source == "pending" and error.thread == "MainThread" and any(frame.user for frame in error.frames)
        ]
        if not pending:
            continue
        others = [other for other in waiting if other is not seen and not _same_error(other, pending)]
        thread = views.newest_main_thread(seen)
        if thread is not None and any(code.around(frame).handling for frame in thread.frames if frame.user):
            continue  # the program has an answer to that exception; what it does now is the question
        if others:
            wait = graph.states[seen.rank].wait
            # It was raised before the call that its handler makes.
            began = pending[-1].at if pending[-1].at is not None or wait is None else wait.since - 1.0
            return replace(explain_exception(seen, pending[-1], evidence), began=began)
    return None


def _same_error(seen: RankEvidence, errors: list[RaisedException]) -> bool:
    types = {error.type for error in errors}
    return any(error.source == "pending" and error.type in types for error in seen.exceptions)
