"""Words for jobs whose ranks stand, and for stages."""

from __future__ import annotations

from rankscope.diagnosis.facts.roots import (
    AfterStage,
    AllWait,
    AwaitsUnseen,
    BeyondTimeLimit,
    CameLate,
    ConnectionLost,
    EndedFirst,
    InCall,
    InsideStage,
    InStage,
    NoEvidence,
    NoRecord,
    NothingMoved,
    SoDo,
    TimedOut,
)
from rankscope.report.words import headline, sentence
from rankscope.report.words.advice import ADVICE
from rankscope.report.words.phrases import NO_LINE, place, ranks_text, verb

ADVICE.update(
    {
        "start-with-probe": "start the job with the probe: the sequence of collectives then shows where the ranks "
        "parted",
        "network-between-hosts": "look at the network between the hosts of these ranks",
        "raise-time-limit": "raise the limit: init_process_group(timeout=timedelta(...)) above the longest one-rank "
        "phase",
        "work-before-group": "or do the work before the process group exists, or on all ranks",
        "look-at-missing-host": "look at the host of the missing ranks: is the process alive, does its log go on?",
        "start-with-rankscope": "start the job with `rankscope run`: the ranks' calls are then on record",
        "look-at-other-hosts": "look at the ranks on other hosts, and at the network between them",
        "logger-on-rank-0": "make the logger on rank 0 only, or set WANDB_MODE=disabled (or offline) for the other "
        "ranks",
        "logger-time-limit": "give its service a time limit: wandb.init(settings=wandb.Settings(init_timeout=60))",
        "name-the-strategy": "name the strategy yourself, Trainer(strategy='ddp') instead of 'auto', so that every "
        "rank chooses the same",
        "all-ranks-started": "check that all ranks were started, and see the same MASTER_ADDR, MASTER_PORT and NCCL_* "
        "variables",
        "fetch-before": "fetch tokenizer, model and data once before the job, or on rank 0 first, and set "
        "HF_HUB_OFFLINE=1 for the job",
        "cache-on-shared-disk": "keep the cache (HF_HOME) on a disk that all ranks can read and lock",
        "directory-on-rank-0": "make the directory on rank 0 only, then dist.barrier(), or use os.makedirs(path, "
        "exist_ok=True)",
        "before-group": "before init_process_group: see which rank has not come, and why; the others wait for it by "
        "design",
        "during-group": "during it: MASTER_ADDR and MASTER_PORT must reach rank 0 from every rank; --comm-debug shows "
        "what NCCL meets",
    }
)


@sentence.register
def _(fact: InCall) -> str:
    at = place(fact.where) if fact.where is not None else NO_LINE
    return f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'wait')} in {fact.op} at {at}"


@sentence.register
def _(fact: AllWait) -> str:
    return "all ranks wait for each other: " + "; ".join(map(sentence, fact.calls))


@sentence.register
def _(fact: NothingMoved) -> str:
    return f"nothing has moved for {fact.for_s:.0f} s"


@sentence.register
def _(fact: SoDo) -> str:
    return f"{headline(fact.first)}; so does {ranks_text(fact.others)}"


@sentence.register
def _(fact: BeyondTimeLimit) -> str:
    limit = f"longer than the time limit of the collective in which {ranks_text(fact.ranks)} waited"
    return f"{headline(fact.summary)}, {limit}"


@sentence.register
def _(fact: TimedOut) -> str:
    return f"{ranks_text(fact.ranks)} ended with a time-out in a collective"


@sentence.register
def _(fact: CameLate) -> str:
    waited = f"{ranks_text(fact.ranks)} had given it up after {fact.limit_s:.1f} s"
    return f"rank {fact.rank} came to the {fact.op} at {place(fact.where)} {fact.late_s:.1f} s after {waited}"


@sentence.register
def _(fact: AwaitsUnseen) -> str:
    told = "nothing could be seen from here" if fact.unseen else "nothing tells what it waits for itself"
    return f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'wait')} for {ranks_text(fact.awaited)}, of which {told}"


@sentence.register
def _(fact: NoEvidence) -> str:
    return f"no evidence of {ranks_text(fact.ranks)}"


@sentence.register
def _(fact: NoRecord) -> str:
    return f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'stand')} in torch, and there is no record of its calls"


@sentence.register
def _(fact: ConnectionLost) -> str:
    return f"{ranks_text(fact.ranks)} lost the connection to other ranks, and what began it was not seen"


@sentence.register
def _(fact: EndedFirst) -> str:
    return f"rank {fact.rank} ended first: {fact.message}"


@sentence.register
def _(fact: InStage) -> str:
    return f"in stage {fact.number}, {fact.label}"


@sentence.register
def _(fact: AfterStage) -> str:
    return f"after stage {fact.number}, {fact.passed}"


@sentence.register
def _(fact: InsideStage) -> str:
    at = f", called at {place(fact.where)}" if fact.where is not None else ""
    return f"{ranks_text(fact.ranks)} {'is' if len(fact.ranks) == 1 else 'are'} in the stage {fact.label}{at}"
