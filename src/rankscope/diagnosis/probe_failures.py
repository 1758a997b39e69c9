"""What went wrong inside the probe: never the job's fault, and told beside every verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankscope.diagnosis.facts.run import ProbeFailed

_MOST = 5


def probe_failures(errors: Mapping[int, Sequence[str]]) -> tuple[ProbeFailed, ...]:
    """Rank → the errors on its page. Ranks run the same program: the same error of many is one fact."""
    ranks: dict[str, list[int]] = {}
    for rank in sorted(errors):
        for error in dict.fromkeys(errors[rank]):
            ranks.setdefault(error, []).append(rank)
    return tuple(ProbeFailed(tuple(found), error) for error, found in ranks.items())[:_MOST]
