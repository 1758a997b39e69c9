"""Where no rule finds anything wrong: `ok` if the job was seen to end well or to go on, otherwise `unknown`.

`ok` is a statement, not the lack of one. Files that show nothing, a process that cannot be read, a rank that stands
still for a reason nobody could find are unknown: with what was seen, what is missing, and the step that would tell.
"""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.diagnosis import views
from rankscope.diagnosis.advice import Advice
from rankscope.diagnosis.device import device_wait, device_works, stands_in_device_wait
from rankscope.diagnosis.device_facts import device_facts, ras_facts
from rankscope.diagnosis.facts import Fact
from rankscope.diagnosis.facts.launched import GpusWork, StandsOnGpu
from rankscope.diagnosis.facts.logs import LastLine
from rankscope.diagnosis.facts.nothing_found import (
    CouldNotRead,
    EndedWithZero,
    InUnfinished,
    JudgedBefore,
    LastLinesDiffer,
    LogsEnd,
    Looked,
    NoEndTold,
    NoLogOf,
    NoRankNamed,
    NothingToRead,
    NotUsed,
    OneLook,
    Phase,
    SeenToMove,
    StoodStill,
)
from rankscope.diagnosis.facts.recorded import RecordedCall
from rankscope.diagnosis.finding import Possibility, Ruling
from rankscope.diagnosis.launched import read_launched
from rankscope.diagnosis.rules.offline.log_facts import ago, signs_of_life
from rankscope.diagnosis.rules.offline.log_phases import phase_of, references_of, what_may_keep_it
from rankscope.diagnosis.rules.offline.log_progress import last_steps, said_done, still_counts
from rankscope.diagnosis.rules.offline.log_ranks import line_of
from rankscope.diagnosis.rules.standing.stand import busy, movement
from rankscope.evidence.model import Evidence, Log, RankEvidence

_MOST_SHOWN = 8
LOOK_INSIDE = Advice("look-inside")
READ_AS_USER = (Advice("attach-as-its-user"), Advice("allow-ptrace"))


def went_on(seen: RankEvidence, evidence: Evidence) -> bool:
    """The rank got somewhere between the looks: another line, bytes, a step or call of its own, a collective that
    completed or was launched, work of its GPU. Processor time alone is no progress: a rank that waits may spin. Nor is
    the utilisation of a GPU: kernels that wait count as well."""
    if _still_on_gpu(seen, evidence):
        return False
    launched = read_launched(evidence)
    if launched is not None and launched.grew(seen.rank):
        return True
    waits = stands_in_device_wait(seen)
    if waits and device_works(seen, evidence):
        return True
    if views.same_stack(seen) is False or (views.works_through(seen) and not waits):
        return True
    rate = views.io_rate(seen.processes)
    if rate is not None and rate >= views.LIFE_IO_BYTES_PER_S:
        return True
    times = [*(sample.at for sample in seen.processes), *(sample.at for sample in seen.stacks)]
    if len(times) < 2:
        return False
    begun, ended = min(times), max(times)
    noted = seen.progress is not None and begun < seen.progress.changed_at <= ended
    return noted or any(
        call.completed_at is not None and begun < call.completed_at <= ended for call in seen.collectives
    )


def _still_on_gpu(seen: RankEvidence, evidence: Evidence) -> bool:
    """At the end it stood in a wait for a GPU that does nothing. What it did before, launches too, was the program
    running ahead of its GPU: it can do so by hundreds of calls."""
    if device_works(seen, evidence) is not False or device_wait(seen) is None or len(seen.stacks) < 3:
        return False
    newest = replace(seen, stacks=seen.stacks[-3:])
    return views.same_stack(newest) is True


def as_seen(ruling: Ruling, evidence: Evidence) -> Ruling:
    """A ruling that found nothing wrong, held against what was seen of the job."""
    if ruling.outcome != "ok":
        return ruling
    if evidence.judged not in ("", "ok"):
        return unknown(ruling, JudgedBefore(evidence.judged), (NoEndTold(),), (Advice("read-its-verdict"),))
    return _ended_well(ruling, evidence) or _by_looks(ruling, evidence) or _by_logs(ruling, evidence)


def _ended_well(ruling: Ruling, evidence: Evidence) -> Ruling | None:
    codes = {seen.rank: seen.exit.code for seen in evidence.ranks if seen.exit is not None}
    everybody = {*range(evidence.world_size), *(seen.rank for seen in evidence.ranks)}
    if not everybody or set(codes) != everybody or any(codes.values()):
        return None
    return replace(ruling, summary=EndedWithZero(len(everybody)))


def _by_looks(ruling: Ruling, evidence: Evidence) -> Ruling | None:
    """By stacks, processes and dumps; None where there are none."""
    ranks = [seen for seen in evidence.ranks if views.alive(seen)]
    if not any(seen.stacks or seen.processes or seen.collectives for seen in ranks):
        return None
    looked = tuple(
        Looked(seen.rank, views.current_where(seen), movement(seen))
        for seen in ranks[:_MOST_SHOWN]
        if seen.stacks or seen.processes
    )
    told = (*ras_facts(evidence), *device_facts(evidence))
    if all(went_on(seen, evidence) for seen in ranks):
        return replace(ruling, certainty="likely", summary=_going_on(ranks, evidence), because=(*told, *looked))
    unread = could_not_read(ranks, evidence)
    if unread is not None:
        return unknown(ruling, unread, (*told, *looked), READ_AS_USER)
    if all(stands_in_device_wait(seen) and not went_on(seen, evidence) for seen in ranks):
        return _stand_on_gpu(ruling, ranks, evidence, (*told, *looked))
    if any(len(seen.stacks) > 1 or len(seen.processes) > 1 for seen in ranks):
        steps = (Advice("watch-it-longer"), Advice("run-with-rankscope"))
        return unknown(ruling, stood_still(ranks, evidence), (*told, *looked), steps)
    unfinished = _unfinished(evidence)
    missing = (Advice("stacks-twice"),) if any(seen.stacks for seen in ranks) else (LOOK_INSIDE, Advice("give-logs"))
    return unknown(ruling, OneLook(tuple(unfinished)), tuple(unfinished.values())[:_MOST_SHOWN], missing)


def _going_on(ranks: list[RankEvidence], evidence: Evidence) -> Fact:
    numbers = tuple(seen.rank for seen in ranks)
    on_gpu = all(stands_in_device_wait(seen) and device_works(seen, evidence) for seen in ranks)
    return GpusWork(numbers) if on_gpu else SeenToMove(numbers)


def _stand_on_gpu(ruling: Ruling, ranks: list[RankEvidence], evidence: Evidence, because: tuple[Fact, ...]) -> Ruling:
    """Where every rank waits for its GPU, stacks do not show who began it: NCCL's counts or torch's recorder would."""
    times = [sample.at for seen in ranks for sample in seen.processes]
    over_s = max(times) - min(times) if times else 0.0
    heard = any(host.ras for host in evidence.hosts)
    lost = any(look.lost for host in evidence.hosts for look in host.ras)
    launched = read_launched(evidence)
    known = {seen.rank for seen in evidence.ranks}
    elsewhere = launched is not None and bool(launched.behind() - known)
    steps = (
        *((Advice("look-at-silent-host"),) if lost else ()),
        *((Advice("attach-there"),) if elsewhere else ()),
        Advice("record-nccl"),
        *(() if heard else (Advice("ras-on"),)),
        Advice("watch-it-longer"),
    )
    return unknown(ruling, StandsOnGpu(tuple(seen.rank for seen in ranks), over_s), because, steps)


def _by_logs(ruling: Ruling, evidence: Evidence) -> Ruling:
    good = said_done(evidence) or still_counts(evidence)
    if good is not None:
        return replace(ruling, certainty="possible", summary=good, because=(good,))
    return _silent(ruling, evidence) or _without_ranks(ruling, evidence)


def _silent(ruling: Ruling, evidence: Evidence) -> Ruling | None:
    """Logs of ranks that end without a word of the end: the job may stand, or be gone."""
    signs = [sign for sign in signs_of_life(evidence) if sign.rank is not None]
    if not signs:
        return None
    phases = {seen.rank: phase_of(seen.log) for seen in evidence.ranks if seen.log is not None and seen.log.lines}
    phase = next(iter(phases.values())) if len(set(phases.values())) == 1 else phases[signs[-1].rank or 0]
    ranks = tuple(sorted(phases))
    ahead = tuple(rank for rank in ranks if phases[rank] == phase)
    behind = tuple(rank for rank in ranks if phases[rank] != phase)
    unheard = tuple(rank for rank in range(evidence.world_size) if rank not in phases)
    ages = [sign.ago_s for sign in signs if sign.ago_s is not None]
    steps = last_steps(evidence)
    because: list[Fact] = [line_of(sign, sign.rank or 0) for sign in sorted(signs, key=lambda sign: sign.rank or 0)]
    because = [
        *because[:_MOST_SHOWN],
        *([steps] if steps is not None else []),
        *([LastLinesDiffer(behind, ahead)] if behind else []),
        *([NoLogOf(unheard)] if unheard else []),
        NoEndTold(),
    ]
    silent = LogsEnd(ranks, min(ages, default=None), phase)
    next_steps = (LOOK_INSIDE, Advice("let-torch-dump"), Advice("run-with-rankscope"))
    logs = [seen.log for seen in evidence.ranks if seen.log is not None]
    known = replace(ruling, references=(*ruling.references, *references_of(phase, logs)))
    return unknown(known, silent, tuple(because), next_steps, what_may_keep_it(phase))


def _without_ranks(ruling: Ruling, evidence: Evidence) -> Ruling:
    unused = tuple(NotUsed(text) for text in evidence.refused[:_MOST_SHOWN])
    if evidence.log is None or not evidence.log.lines:
        what = NothingToRead(len(evidence.refused))
        return unknown(ruling, what, unused, (Advice("what-diagnose-reads"), Advice("run-with-rankscope")))
    steps = last_steps(evidence)
    because = (*unused, *((steps,) if steps is not None else ()))
    phase = phase_of(evidence.log)
    if phase != "unknown":
        return _silent_without_ranks(ruling, evidence, evidence.log, phase, because)
    what_log = NoRankNamed(evidence.log.lines, evidence.log.files[:3])
    return unknown(ruling, what_log, because, (Advice("give-rank-logs"), Advice("prefix-output")))


def _silent_without_ranks(
    ruling: Ruling, evidence: Evidence, log: Log, phase: Phase, because: tuple[Fact, ...]
) -> Ruling:
    """Lines of no rank tell how far the job came, and nothing about who keeps it."""
    ago_s = ago(log, evidence)
    last = next((text.strip() for text in reversed(log.tail) if text.strip()), "")
    line = LastLine(None, last[:100], None, ago_s)
    known = replace(ruling, references=(*ruling.references, *references_of(phase, [log])))
    steps = (LOOK_INSIDE, Advice("prefix-output"), Advice("let-torch-dump"))
    return unknown(known, LogsEnd((), ago_s, phase), (line, *because, NoEndTold()), steps, what_may_keep_it(phase))


def unknown(
    ruling: Ruling,
    what: Fact,
    because: tuple[Fact, ...],
    next_steps: tuple[Advice, ...],
    alternatives: tuple[Possibility, ...] = (),
) -> Ruling:
    """What was seen does not tell; `next_steps` say how to get what is missing."""
    return replace(
        ruling,
        outcome="unknown",
        cause=None,
        certainty="possible",
        summary=what,
        culprits=(),
        victims=(),
        because=because,
        fix=(),
        alternatives=alternatives or ruling.alternatives,
        next=next_steps,
    )


def could_not_read(ranks: list[RankEvidence], evidence: Evidence) -> CouldNotRead | None:
    """Ranks of which nothing shows what they do, with the reason that the reader gave."""
    blind = [seen for seen in ranks if not seen.stacks and not seen.collectives and not went_on(seen, evidence)]
    # Without a process to look at, nobody tried: the files that were given hold no stacks.
    tried = [seen for seen in blind if seen.processes and "stacks" in seen.missing]
    if not tried:
        return None
    return CouldNotRead(tuple(seen.rank for seen in tried), tried[0].missing["stacks"])


def stood_still(ranks: list[RankEvidence], evidence: Evidence) -> StoodStill:
    still = [seen for seen in ranks if not went_on(seen, evidence)]
    return StoodStill(
        tuple(seen.rank for seen in still if not busy(seen)),
        tuple(seen.rank for seen in still if busy(seen)),
        tuple(seen.rank for seen in ranks if seen not in still),
    )


def _unfinished(evidence: Evidence) -> dict[int, Fact]:
    """Rank → the collective that it was in."""
    found: dict[int, Fact] = {}
    for seen in evidence.ranks:
        for call in seen.collectives[-1:]:
            if not call.retired and call.state != "completed":
                at = views.where(views.innermost_user_frame(call.frames))
                found[seen.rank] = InUnfinished(seen.rank, RecordedCall(call.op, call.seq, call.group, at))
    return found
