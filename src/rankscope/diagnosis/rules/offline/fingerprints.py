"""Calls that torch compared before they were made (TORCH_DISTRIBUTED_DEBUG=DETAIL): who called another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rankscope.diagnosis import views
from rankscope.diagnosis.finding import Finding, Possibility
from rankscope.diagnosis.rules.offline import log_facts as facts
from rankscope.diagnosis.rules.offline.log_facts import Fingerprint
from rankscope.diagnosis.rules.offline.log_words import DUMP, MATCH_FIX, culprit
from rankscope.evidence.model import Evidence


def explain_mismatch(evidence: Evidence) -> Finding | None:
    """By the words alone, for files: the numbers in them are taken for ranks of the job."""
    texts = [line.text for _, line in facts.all_lines(evidence)]
    texts += [error.message for seen in evidence.ranks for error in seen.exceptions]
    return _explain(facts.fingerprints(texts), evidence)


def explain_compared(evidence: Evidence) -> Finding | None:
    """By what each rank raised: its own call stands first in it. The numbers in the text are those of a group."""
    own: dict[int, Fingerprint] = {}
    numbers: list[int] = []
    for seen in evidence.ranks:
        told = [prints for error in seen.exceptions if (prints := facts.fingerprints((error.message,)))]
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
    # Half against half: both are parties to it.
    tied = 2 * most <= len(found)
    guilty = found if tied else [each for each in found if each.signature() != usual]
    parts = [_told([each for each in found if each.signature() == signature], evidence) for signature in counts]
    odd = [_told([each for each in guilty if each.signature() == signature], evidence) for signature in counts]
    rest = _told([each for each in found if each.signature() == usual], evidence)
    ops = {each.op for each in found}
    return Finding(
        outcome="crash",
        cause="collective-mismatch",
        certainty="likely" if tied else "proven",
        culprits=tuple(culprit(each.rank, f"called {each.words()}", evidence) for each in guilty),
        summary="the ranks called different collectives: " + "; ".join(parts[:4])
        if tied
        else f"{'; '.join(filter(None, odd[:4]))}, where {rest}",
        because=(*parts[:6], "torch compared the calls before they were made"),
        fix=MATCH_FIX,
        alternatives=(
            Possibility(
                "collective-skipped",
                "possible",
                "one side may have left out a call before" if len(ops) > 1 else "a rank may be one call ahead",
                DUMP,
            ),
        ),
        references=("modelscope/ms-swift#9443",),
        next=() if not tied else (DUMP,),
        victims=None if tied else tuple(sorted(each.rank for each in found if each.signature() == usual)),
    )


def _told(alike: Sequence[Fingerprint], evidence: Evidence) -> str:
    if not alike:
        return ""
    ranks = [each.rank for each in alike]
    at = culprit(ranks[0], "", evidence).where
    place = f" in {views.place(at)}" if at is not None else ""
    return f"{views.ranks_text(ranks)} called {alike[0].words()}{place}"
