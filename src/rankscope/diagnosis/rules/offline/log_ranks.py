"""What rules about logs have in common: a rank as a culprit, its last line, and the steps that would tell more."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.logs import LastLine
from rankscope.diagnosis.finding import Suspect
from rankscope.diagnosis.rules.offline.log_facts import signs_of_life
from rankscope.diagnosis.verdict import SignOfLife
from rankscope.evidence.model import Evidence, RankEvidence

STACK = Advice("look-inside")
DUMP = Advice("let-torch-dump")
RERUN = Advice("run-with-rankscope")
KERNEL = Advice("kernel-log")
OWN_LOG = Advice("read-its-log")
MATCH_FIX = (Advice("same-call"), Advice("pad-first"))


def seen_rank(rank: int, evidence: Evidence) -> RankEvidence | None:
    return next((seen for seen in evidence.ranks if seen.rank == rank), None)


def culprit(rank: int, doing: Fact, evidence: Evidence) -> Suspect:
    seen = seen_rank(rank, evidence)
    if seen is None:
        return Suspect(rank, None, None, "rank", None, doing)
    frames = next((error.frames for error in reversed(seen.exceptions) if error.frames), ())
    return views.rank_culprit(seen, doing, views.where(views.innermost_user_frame(frames)))


def last_line(rank: int, evidence: Evidence) -> LastLine:
    sign = next((sign for sign in signs_of_life(evidence) if sign.rank == rank), None)
    return LastLine(rank, None, None, None) if sign is None else line_of(sign, rank)


def line_of(sign: SignOfLife, rank: int) -> LastLine:
    return LastLine(rank, sign.line[:100], sign.silent_s, sign.ago_s)
