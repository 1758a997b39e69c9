"""Calls that torch compared before they were made (TORCH_DISTRIBUTED_DEBUG=DETAIL): who called another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rankscope.diagnosis.facts import changed
from rankscope.diagnosis.facts.logs import ComparedBeforehand, ComparedCall, ComparedCallsDiffer, May, OddCall
from rankscope.diagnosis.finding import Finding, Possibility, Way
from rankscope.diagnosis.rules.offline import log_facts
from rankscope.diagnosis.rules.offline.log_facts import Fingerprint
from rankscope.diagnosis.rules.offline.log_ranks import DUMP, MATCH_FIX, culprit
from rankscope.evidence.model import Evidence


def explain_mismatch(evidence: Evidence) -> Finding | None:
    """By the words alone, for files: the numbers in them are taken for ranks of the job."""
    texts = [line.text for _, line in log_facts.all_lines(evidence)]
    texts += [error.message for seen in evidence.ranks for error in seen.exceptions]
    return _explain(log_facts.fingerprints(texts), evidence)


def explain_compared(evidence: Evidence) -> Finding | None:
    """By what each rank raised: its own call stands first in it. The numbers in the text are those of a group."""
    own: dict[int, Fingerprint] = {}
    numbers: list[int] = []
    for seen in evidence.ranks:
        told = [prints for error in seen.exceptions if (prints := log_facts.fingerprints((error.message,)))]
        if told:
            mine = told[-1][0]
            numbers.append(mine.rank)
            own[seen.rank] = Fingerprint(seen.rank, mine.op, mine.shape, mine.dtype, mine.seq)
    one_place = len({each.seq for each in own.values()}) == 1 and len(set(numbers)) == len(numbers)
    return _explain(tuple(own.values()), evidence) if one_place else None


def _explain(found: Sequence[Fingerprint], evidence: Evidence) -> Finding | None:
    counts = Counter(each.signature() for each in found)
    if len(counts) < 2:
        return None
    usual, most = counts.most_common(1)[0]
    by_signature = {key: [each for each in found if each.signature() == key] for key in counts}
    sides = {key: _call(alike, evidence) for key, alike in by_signature.items()}
    if 2 * most <= len(found):
        return _tied(found, tuple(sides.values()))
    guilty = [each for each in found if each.signature() != usual]
    odd = tuple(side for key, side in sides.items() if key != usual)
    return Finding(
        outcome="crash",
        cause="collective-mismatch",
        certainty="proven",
        culprits=tuple(culprit(each.rank, _call([each], evidence), evidence) for each in guilty),
        summary=OddCall(odd[:4], sides[usual]),
        because=(*tuple(sides.values())[:6], ComparedBeforehand()),
        fix=MATCH_FIX,
        alternatives=_not_the_same_place(found),
        references=("modelscope/ms-swift#9443",),
        victims=tuple(sorted(sides[usual].ranks)),
    )


def _tied(found: Sequence[Fingerprint], sides: tuple[ComparedCall, ...]) -> Finding:
    """Half against half: nothing shows which side is wrong."""
    return Finding(
        outcome="crash",
        cause="collective-mismatch",
        certainty="likely",
        culprits=(),
        summary=ComparedCallsDiffer(sides[:4]),
        because=(*sides[:6], ComparedBeforehand()),
        fix=MATCH_FIX,
        alternatives=_not_the_same_place(found),
        references=("modelscope/ms-swift#9443",),
        next=(DUMP,),
        ways=tuple(Way(side.ranks, side.where, changed(side, ranks=(), where=None)) for side in sides),
    )


def _not_the_same_place(found: Sequence[Fingerprint]) -> tuple[Possibility, ...]:
    """Calls that differ may belong to different places of the program."""
    differ = len({each.op for each in found}) > 1
    return (Possibility("collective-skipped", "possible", May((), "skip-before" if differ else "ahead"), DUMP),)


def _call(alike: Sequence[Fingerprint], evidence: Evidence) -> ComparedCall:
    ranks = tuple(each.rank for each in alike)
    first = alike[0]
    call = ComparedCall(ranks, first.op, first.shape, None)
    return ComparedCall(ranks, first.op, first.shape, culprit(ranks[0], call, evidence).where)
