"""What findings from logs have in common: a rank's last words, and the steps that would confirm a cause."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.diagnosis.finding import Suspect
from rankscope.diagnosis.rules.offline import log_facts as facts
from rankscope.evidence.model import Evidence, RankEvidence

STACK = "while it hangs: `rankscope attach` on the host of that rank, or `py-spy dump --pid PID`"
DUMP = (
    "let torch write flight-recorder dumps (TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1) and give them to "
    "rankscope diagnose: they name the call and the line"
)
RERUN = "start the job with `rankscope run`: it sees what the silent rank does"
KERNEL = "look at the kernel's log of that host: `dmesg -T | grep -i -E 'killed process|out of memory|xid'`"
MATCH_FIX = (
    "make all ranks call the same collective with the same shape and dtype at this place",
    "pad or gather sizes first where the data differs from rank to rank",
)


def seen_rank(rank: int, evidence: Evidence) -> RankEvidence | None:
    return next((seen for seen in evidence.ranks if seen.rank == rank), None)


def culprit(rank: int, doing: str, evidence: Evidence) -> Suspect:
    seen = seen_rank(rank, evidence)
    if seen is None:
        return Suspect(rank, None, None, "rank", None, doing)
    frames = next((error.frames for error in reversed(seen.exceptions) if error.frames), ())
    return views.rank_culprit(seen, doing, views.where(views.innermost_user_frame(frames)))


def last_words(rank: int, evidence: Evidence) -> str:
    sign = next((sign for sign in facts.signs_of_life(evidence) if sign.rank == rank), None)
    if sign is None:
        return f"no line of rank {rank} is in the logs"
    silent = f", silent for {span(sign.silent_s)}" if sign.silent_s is not None and sign.silent_s >= 1 else ""
    return f"the last line of rank {rank} is {sign.line[:100]!r}{silent}"


def span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
