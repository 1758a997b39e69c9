"""Ranks that ended: by an exception, a signal, a code of their own, or well and too early."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis.case import Case
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.registry import rule
from rankscope.diagnosis.rules.crashes.broken import explain_broken
from rankscope.diagnosis.rules.crashes.hidden import explain_hidden
from rankscope.diagnosis.rules.crashes.late import explain_late
from rankscope.diagnosis.rules.crashes.left import explain_left, left_together
from rankscope.diagnosis.rules.divergence.ended_apart import explain_skipped_before_end
from rankscope.diagnosis.rules.divergence.paired import explain_paired_call
from rankscope.diagnosis.rules.numbers.non_finite import ended_by_itself
from rankscope.diagnosis.rules.offline.fingerprints import explain_compared
from rankscope.diagnosis.rules.setup.variables import explain_odd_variables

_SAME_MOMENT_S = 1.0
"""The launcher looks at its processes one after another: nearly equal times have no order."""


@rule(
    *("exception", "out-of-memory-host", "out-of-memory-gpu", "killed", "native-crash", "exit-code", "port-in-use"),
    *("address-unreachable", "device-mapping", "shm-exhausted", "fd-exhausted", "disk-full", "path-race"),
    *("import-failed", "comm-error", "collective-mismatch", "rank-missing"),
)
def failed_first(case: Case) -> Finding | None:
    """The first of the ranks that ended with a failure of their own."""
    origin = case.endings.origin
    if origin is None or ended_by_itself(case.evidence):
        return None
    if explain_odd_variables(case.evidence) is not None:
        return None  # whoever gave up first waited for a rank that looked elsewhere
    compared = explain_compared(case.evidence) if origin.cause == "collective-mismatch" else None
    return compared or origin


@rule("exception")
def hidden_exception(case: Case) -> Finding | None:
    """A rank waits for others in `finally:` or a handler, and hides what went wrong."""
    return explain_hidden(case.evidence, case.graph, case.code) if case.endings.origin is None else None


@rule("rank-left", "uneven-data", "rank-missing")
def left_too_early(case: Case) -> Finding | None:
    """Ranks that ended well while others still needed them, and had made the same calls as these up to then."""
    if not case.left or case.endings.origin is not None:
        return None
    if explain_paired_call(case.graph, case.evidence, "proven") is not None:
        return None
    if any(explain_skipped_before_end(seen, case.evidence, case.graph) is not None for seen in case.left):
        return None
    begun = min(seen.exit.at for seen in case.left if seen.exit is not None)
    together = [seen for seen in case.left if seen.exit is not None and seen.exit.at <= begun + _SAME_MOMENT_S]
    together.sort(key=lambda seen: seen.rank)
    found = [explain_left(seen, case.evidence, case.graph.waiters_of(seen.rank)) for seen in together]
    return left_together(found)


@rule("rank-left", "uneven-data", "rank-missing")
def left_unseen(case: Case) -> Finding | None:
    """Ranks lost their connection in something that was not recorded, such as a compiled graph, after one had ended."""
    left = [seen for seen in case.evidence.ranks if seen.rank in case.endings.left]
    victims = case.endings.victims
    if case.left or case.endings.origin is not None or len(left) != 1 or not victims:
        return None
    if any(case.graph.states[rank].kind == "waiting" for rank in victims):
        return None
    finding = explain_left(left[0], case.evidence, victims)
    return replace(finding, certainty="likely") if finding.certainty == "proven" else finding


@rule("slow-rank")
def came_late(case: Case) -> Finding | None:
    """A rank came to a collective when the others' time in it had run out."""
    if case.endings.origin is not None or case.left or not case.endings.victims:
        return None
    return explain_late(case.evidence, case.endings.victims)


@rule("comm-error")
def broken_connections(case: Case) -> Finding | None:
    """A job in which a rank failed is never well, even where every failure is a consequence."""
    return explain_broken(case.evidence, case.endings) if case.endings.victims else None
