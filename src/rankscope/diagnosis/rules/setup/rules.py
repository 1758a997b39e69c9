"""Jobs that do not come about, and machines that are lost."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis.case import Case
from rankscope.diagnosis.finding import Finding
from rankscope.diagnosis.registry import rule
from rankscope.diagnosis.rules.setup.nodes import explain_lost_node
from rankscope.diagnosis.rules.setup.set_up import explain_group_creation, explain_missing
from rankscope.diagnosis.rules.setup.variables import explain_odd_variables


@rule("killed", "frozen-process", "address-unreachable", "rank-missing", "comm-error")
def lost_node(case: Case) -> Finding | None:
    """A machine of the job is gone, frozen or cut off."""
    return explain_lost_node(case.evidence, case.graph)


@rule("address-unreachable")
def odd_variables(case: Case) -> Finding | None:
    """Ranks that look for the others at another address or port than the rest."""
    return explain_odd_variables(case.evidence)


@rule("collective-skipped", "collective-mismatch")
def groups_made_differently(case: Case) -> Finding | None:
    """Ranks did not ask for the same process groups in the same order."""
    if case.endings.origin is not None or case.left:
        return None
    finding = explain_group_creation(case.graph)
    return None if finding is None else replace(finding, began=_asked_at(case))


def _asked_at(case: Case) -> float | None:
    """When the first group was asked for that is not the same on all ranks."""
    asked = [
        [call for call in seen.progress.calls if call.op in ("new_group", "split_group") and call.depth == 0]
        for seen in case.evidence.ranks
        if seen.progress is not None
    ]
    for calls in zip(*asked, strict=False):
        times: list[float] = [call.entered_at for call in calls]
        if len({call.note for call in calls}) > 1:
            return min(times)
    return None


@rule("rank-missing")
def missing_ranks(case: Case) -> Finding | None:
    """Ranks of the declared world that nobody started."""
    return explain_missing(case.graph, case.evidence) if case.endings.origin is None else None
