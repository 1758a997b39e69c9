"""An extra call that met a later one of the others: every rank stands on an innocent line by now."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis.blame import blame
from rankscope.diagnosis.divergence import find_divergence
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.rules.divergence.parted import skipped
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.verdict import Certainty
from rankscope.diagnosis.wait_graph import WaitGraph
from rankscope.evidence.model import Evidence


def explain_paired_call(graph: WaitGraph, evidence: Evidence, certainty: Certainty) -> Finding | None:
    """An extra collective under a condition on the rank that paired with a later one of the others: since then the
    sequences are out of step, and every rank stands on an innocent line. None where no such call was made."""
    code = CodeReader(evidence)
    groups = dict.fromkeys(wait.group for rank in graph.waiting() if (wait := graph.states[rank].wait) is not None)
    for group in groups:
        divergence = graph.once(find_divergence, group) if group else None
        if divergence is None or any(side.event is None for side in divergence.sides):
            continue
        decided = blame(divergence, graph.states, code)
        if decided.reserved and decided.extra and set(decided.ranks) <= set(graph.waiting()):
            failed = any(seen.exit is not None and seen.exit.code for seen in evidence.ranks)
            finding = skipped(divergence, decided, graph, code)
            return replace(finding, certainty=certainty, outcome="crash" if failed else "hang")
    return None
