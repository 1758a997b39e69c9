"""The case: everything that rules read, prepared once from the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from rankscope.diagnosis.rules.crashes.aborted import settle_abort
from rankscope.diagnosis.rules.crashes.endings import Endings, explain_endings
from rankscope.diagnosis.source.reader import CodeReader
from rankscope.diagnosis.wait_graph import WaitGraph, build_graph, innermost_knot
from rankscope.evidence.model import Evidence, Exit, RankEvidence


@dataclass(frozen=True)
class Case:
    evidence: Evidence
    endings: Endings
    """Who ended, who began it, and who only failed with the others."""
    graph: WaitGraph

    @property
    def offline(self) -> bool:
        """Put together from files: nobody saw the job itself."""
        return self.evidence.trigger.startswith("files")

    @cached_property
    def code(self) -> CodeReader:
        return CodeReader(self.evidence)

    @cached_property
    def left(self) -> tuple[RankEvidence, ...]:
        """Ranks that ended well while others, directly or not, wait for them."""
        return tuple(
            seen for seen in self.evidence.ranks if seen.rank in self.endings.left and self.graph.waiters_of(seen.rank)
        )

    @cached_property
    def knot(self) -> frozenset[int]:
        """Ranks that wait for one another and can never go on, none of them for one that has ended; empty without."""
        ended = {rank for rank, state in self.graph.states.items() if state.kind == "ended"}
        knot = innermost_knot(self.graph)
        return frozenset() if any(self.graph.edges[rank] & ended for rank in knot) else knot

    @cached_property
    def failed(self) -> bool:
        """A rank has ended with a failure."""
        return any(seen.exit is not None and seen.exit.code for seen in self.evidence.ranks)


def prepare(evidence: Evidence) -> Case:
    """Ranks in their order; those whose exception nobody caught count as ended."""
    by_log = evidence.trigger.startswith("files")
    ended = (_as_ended(rank, by_log=by_log) for rank in evidence.ranks)
    seen = replace(evidence, ranks=tuple(sorted(ended, key=lambda rank: rank.rank)))
    endings = explain_endings(seen)
    graph = build_graph(seen, failed=endings.victims)
    return Case(seen, settle_abort(endings, graph, seen), graph)


def _as_ended(seen: RankEvidence, *, by_log: bool) -> RankEvidence:
    """A rank whose exception nobody caught is over, even while its interpreter still cleans up, or hangs in that. So is
    one whose log ends with a traceback."""
    uncaught = [error for error in seen.exceptions if error.source == "hook"]
    if by_log and not uncaught and not seen.stacks:
        uncaught = [error for error in seen.exceptions if error.thread == "MainThread"]
    if seen.exit is not None or not uncaught:
        return seen
    at = uncaught[-1].at or seen.started_at
    return replace(seen, exit=Exit(code=1, at=at, by_launcher=False))
