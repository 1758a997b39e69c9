"""Jobs of which nothing is recorded: whom NCCL's own counts show to be behind, ahead, or on another way."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.blame import condition
from rankscope.diagnosis.case import Case
from rankscope.diagnosis.device import device_wait, device_works
from rankscope.diagnosis.device_facts import device_facts
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.calls import Condition
from rankscope.diagnosis.facts.launched import Ahead, Apart, Behind, OnOtherWay, TwoSides
from rankscope.diagnosis.facts.standing import NotRuledOut
from rankscope.diagnosis.finding import Finding, Possibility, Suspect, Way
from rankscope.diagnosis.launched import Launched, read_launched
from rankscope.diagnosis.registry import rule
from rankscope.diagnosis.rules.standing.readings import READINGS, explain_standing
from rankscope.diagnosis.verdict import Certainty
from rankscope.evidence.model import Evidence, RankEvidence

_LONG_ENOUGH_S = 3.0
"""Between two looks at the counts: a rank that is a little behind has caught up by then."""
_MOST_SHOWN = 3


@rule(
    *dict.fromkeys(cause for reading in READINGS for cause in reading.causes),
    *("dataloader-stuck", "frozen-process", "gpu-stuck", "thread-alive", "slow-rank", "endless-loop"),
    *("collective-skipped", "collective-mismatch"),
)
def launched_apart(case: Case) -> Finding | None:
    """Two looks at NCCL's counts show the same difference. Where torch's recorder tells more, it is not asked."""
    evidence = case.evidence
    launched = read_launched(evidence)
    if launched is None or launched.over_s <= 0 or case.endings.origin is not None:
        return None
    if any(seen.collectives or seen.exit is not None for seen in evidence.ranks) or launched.anybody_grew():
        return None
    apart = launched.apart()
    if not apart:
        return None
    behind, ahead = launched.behind(), launched.ahead()
    everybody = {rank for ranks in launched.counts.values() for rank in ranks}
    if not _stand(ahead, case) or not all(_seen(rank, evidence) for rank in behind | launched.both()):
        return None  # nobody waits, or for ranks of another machine, of which nothing is known but their counts
    free = _free(behind, case)
    if free:
        return _instead(free, launched, case)
    crossed = launched.both()
    passed = _passed_by_rank(behind, case)
    if passed is not None:
        return _sides(apart, case, passed)
    if not crossed and _few(behind, everybody):
        return _odd(behind, Behind(_sorted(behind), _of(behind, apart)), "collective-skipped", launched, case)
    if not crossed and _few(ahead, everybody) and all(_waits(rank, case) for rank in everybody - ahead):
        return _odd(ahead, Ahead(_sorted(ahead), _of(ahead, apart)), "collective-skipped", launched, case)
    # Ranks with more of one thing and less of another went another way than somebody: who is only ahead or behind of
    # them says nothing of who left the way.
    odd = _other_way(launched, everybody)
    if odd:
        return _odd(odd, OnOtherWay(_sorted(odd), apart[:2]), "collective-mismatch", launched, case)
    return _sides(apart, case)


def _seen(rank: int, evidence: Evidence) -> RankEvidence | None:
    return next((seen for seen in evidence.ranks if seen.rank == rank), None)


def _waits(rank: int, case: Case) -> bool:
    """It stands in a wait for its GPU, or in a call of torch.distributed."""
    seen = _seen(rank, case.evidence)
    if seen is None or views.same_stack(seen) is False:
        return False
    return device_wait(seen) is not None or case.graph.states[rank].kind == "waiting"


def _stand(ahead: Collection[int], case: Case) -> bool:
    """Those ahead wait, as far as they are seen."""
    return all(_waits(rank, case) for rank in ahead if _seen(rank, case.evidence) is not None)


def _free(behind: Collection[int], case: Case) -> tuple[int, ...]:
    """Those whom the others wait for that neither wait for a GPU nor for a rank: they do something else instead."""
    found = []
    for rank in sorted(behind):
        seen = _seen(rank, case.evidence)
        if seen is not None and seen.stacks and not _waits(rank, case):
            found.append(rank)
    return tuple(found)


def _passed_by_rank(behind: Collection[int], case: Case) -> Condition | None:
    """Those behind stand in a call that a condition on the rank lets the others pass by: who launched fewer is then not
    who is at fault."""
    for rank in sorted(behind):
        seen = _seen(rank, case.evidence)
        thread = views.newest_main_thread(seen) if seen is not None else None
        found = case.code.way_past(frame for frame in thread.frames if frame.user) if thread is not None else None
        if found is not None and found[1].on_rank:
            others = tuple(sorted(set(case.graph.states) - set(behind)))
            return condition(*found, "leads-past", others)
    return None


def _instead(ranks: tuple[int, ...], launched: Launched, case: Case) -> Finding | None:
    """What the first of them does, by where it stands."""
    seen = _seen(ranks[0], case.evidence)
    assert seen is not None
    others = tuple(sorted({rank for counts in launched.counts.values() for rank in counts} - set(ranks)))
    found = explain_standing(seen, case.evidence, others)
    counts = tuple(apart for apart in launched.apart() if ranks[0] in apart.sides[0].ranks)
    return replace(found, because=(*counts[:_MOST_SHOWN], *found.because), victims=others)


def _odd(odd: frozenset[int], what: Fact, cause: str, launched: Launched, case: Case) -> Finding:
    evidence = case.evidence
    victims = tuple(sorted({rank for ranks in launched.counts.values() for rank in ranks} - set(odd)))
    slow = any(device_works(seen, evidence) for seen in evidence.ranks if seen.rank in odd)
    return Finding(
        outcome="slow" if slow else "hang",
        cause="slow-rank" if slow else cause,
        certainty="possible" if slow else _certainty(odd, launched, case),
        culprits=tuple(_suspect(rank, what, evidence) for rank in sorted(odd)),
        summary=what,
        because=(*launched.apart()[:_MOST_SHOWN], *device_facts(evidence)),
        alternatives=() if slow else (Possibility("gpu-stuck", "possible", NotRuledOut("long-kernel")),),
        victims=victims,
    )


def _certainty(odd: frozenset[int], launched: Launched, case: Case) -> Certainty:
    """Likely where the difference stood for long enough, the GPUs are seen to do nothing, and all stand on one line. A
    GPU that does not tell may be in a long kernel; a rank on a line of its own may not have come to the call yet."""
    seen = [each for each in case.evidence.ranks if each.rank in odd]
    idle = len(seen) == len(odd) and all(device_works(each, case.evidence) is False for each in seen)
    together = len({views.current_where(each) for each in case.evidence.ranks}) == 1
    if not idle or launched.over_s < _LONG_ENOUGH_S:
        return "possible"
    return "likely" if together or odd <= launched.ahead() else "possible"


def _suspect(rank: int, what: Fact, evidence: Evidence) -> Suspect:
    seen = _seen(rank, evidence)
    if seen is not None:
        return views.rank_culprit(seen, what, views.current_where(seen))
    host, pid = _elsewhere(rank, evidence)
    return Suspect(rank, host, pid, "rank", None, what)


def _elsewhere(rank: int, evidence: Evidence) -> tuple[str | None, int | None]:
    """Where NCCL says that a rank of another machine runs."""
    for host in evidence.hosts:
        for look in host.ras[-1:]:
            for comm in look.communicators:
                for member in comm.members:
                    if comm.size == evidence.world_size and member.rank == rank and member.pid is not None:
                        return member.host, member.pid
    return None, None


def _few(ranks: Collection[int], everybody: Collection[int]) -> bool:
    """Clearly fewer than the others: otherwise nobody can tell which side is the odd one."""
    return 0 < len(ranks) < len(everybody) / 2


def _other_way(launched: Launched, everybody: set[int]) -> frozenset[int]:
    """The few whose counts differ from those that all others share, in both directions."""
    whole = {key: ranks for key, ranks in launched.counts.items() if set(ranks) == everybody}
    vectors = {rank: tuple(ranks[rank] for ranks in whole.values()) for rank in everybody}
    alike: dict[tuple[int, ...], set[int]] = {}
    for rank, vector in vectors.items():
        alike.setdefault(vector, set()).add(rank)
    most = max(alike.values(), key=len)
    odd = everybody - most
    return frozenset(odd) if whole and _few(odd, everybody) else frozenset()


def _of(ranks: Collection[int], apart: tuple[Apart, ...]) -> Apart:
    """The difference that shows these ranks."""
    return next(
        (each for each in apart if {*each.sides[0].ranks, *each.sides[-1].ranks} & set(ranks)),
        apart[0],
    )


def _sides(apart: tuple[Apart, ...], case: Case, *more: Fact) -> Finding:
    ways = []
    for side in apart[0].sides:
        seen = _seen(side.ranks[0], case.evidence)
        ways.append(Way(side.ranks, views.current_where(seen) if seen is not None else None, side))
    return Finding(
        outcome="hang",
        cause="collective-skipped",
        certainty="possible",
        culprits=(),
        summary=TwoSides(apart[0]),
        because=(*apart[:_MOST_SHOWN], *more, *device_facts(case.evidence)),
        ways=tuple(ways),
    )


def _sorted(ranks: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks))
