"""Words about logs: time limits, silence, calls that torch compared."""

from __future__ import annotations

from rankscope.diagnosis.facts.logs import (
    BarrierNames,
    ComparedBeforehand,
    ComparedCall,
    ComparedCallsDiffer,
    Deed,
    DidNotCome,
    DidNotReach,
    FellSilent,
    HadEntered,
    JoinedStore,
    LastLine,
    LoggedCall,
    MasterAbsent,
    MasterHandsOutId,
    May,
    NeverFinished,
    NeverMatch,
    NotAtInit,
    OddCall,
    OnlySuffered,
    OperationsDiffer,
    PeerWentAway,
    RanIntoTimeLimit,
    StaleStore,
    Suffered,
    ToldNoTimeLimit,
    WaitedIn,
    WaitedInVain,
    WroteKnown,
)
from rankscope.report.words import doing, headline, sentence
from rankscope.report.words.advice import ADVICE
from rankscope.report.words.known_errors import MEANINGS
from rankscope.report.words.phrases import place, ranks_text, span, verb, who

ADVICE.update(
    {
        "look-inside": "while it hangs: `rankscope attach` on the host of that rank, or `py-spy dump --pid PID`",
        "let-torch-dump": "let torch write flight-recorder dumps (TORCH_FR_BUFFER_SIZE=2000, "
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1) and give them to rankscope diagnose: they name the call and the line",
        "run-with-rankscope": "start the job with `rankscope run`: it sees what a silent rank does",
        "kernel-log": "look at the kernel's log of that host: "
        "`dmesg -T | grep -i -E 'killed process|out of memory|xid'`",
        "read-its-log": "read the end of its log",
        "same-collectives-everywhere": "make every rank reach the same collectives in the same order: look for a "
        "condition on the rank or on the data",
        "give-it-more-time": "if it only takes long, as the first gathering of a large model does, give it more time: "
        "`rankscope run --comm-timeout 3600` (NCCL_TIMEOUT=3600), or init_process_group(timeout=...)",
        "try-the-links": "try the links alone: `rankscope check links`, NCCL_P2P_DISABLE=1, NCCL_ALGO=RING; "
        "`rankscope run --comm-debug` keeps what NCCL says",
        "without-mixed-precision": "see whether mixed precision is at fault: distributed.fsdp.mixed_precision=false or "
        "`rankscope train --override training.use_amp=false`; FSDP(use_orig_params=True)",
        "nccl-debug-and-fp32": "`rankscope run --comm-debug --comm-timeout 3600`, then once without mixed precision "
        "(training.use_amp=false)",
        "raise-group-timeout": "where one rank works longer (saving, evaluating, preparing data), raise the timeout "
        "of the process group",
        "first-attempt-log": "find out why the first attempt failed: its log stands above",
        "own-store": "give each attempt a store of its own",
        "first-traceback": "find the first traceback of the first attempt",
        "count-started-ranks": "check how many ranks were started: --nproc-per-node times --nnodes, or ntasks",
        "look-before-init": "look at what the missing ranks do before init_process_group: downloads, loggers, locks",
        "look-before-first-collective": "look at what rank 0 does before its first collective: downloads, preparing "
        "data, loggers",
        "log-and-kernel": "look for an exception in the log of that rank, and for a kill in the kernel's",
        "prefix-output": "start with prefixed output (torchrun --tee 3, srun -l, or rankscope run) to know the rank",
        "lines-around": "read the lines around that message",
        "all-logs-together": "get the logs of the other ranks and hosts, and give all of them to rankscope diagnose "
        "together",
        "who-ended-first": "collect the logs of all ranks; the one that ended first without such a message began it",
        "after-last-line": "look at what comes after that last line in the program",
        "watch-it-longer": "`rankscope attach --watch 60` on its host: a rank that is at work moves",
        "look-at-gpus": "`nvidia-smi` on its host: a GPU at 100 % with little power waits in a collective; look for an "
        "Xid in dmesg",
        "without-loader-workers": "`py-spy dump` on the data-loading workers, or try num_workers=0",
        "look-for-locks": "`rankscope attach` names the lock and who holds it; look for *.lock files in the cache",
        "check-the-network": "`rankscope check ddp` on every node: does MASTER_ADDR answer?",
        "count-batches": "print the number of batches of every rank",
    }
)

_MAY: dict[Deed, str] = {
    "work": "{who} may still be at work",
    "block": "{who} may stand in a call that does not return",
    "block-before-init": "{who} may stand in a call before init_process_group",
    "killed": "{who} may have been killed without a word, as by the memory killer",
    "ended": "{who} may have ended, and so written no dump",
    "failed": "an exception may have ended {who}",
    "failed-after-dump": "{who} may have failed after the dump was written",
    "wait": "{who} may wait in a collective that others do not join",
    "loads": "{who} may wait for data",
    "gpu": "the GPU of {who} may not finish a kernel",
    "skip": "{who} may have left out a call",
    "skip-before": "one side may have left out a call before",
    "ahead": "a rank may be one call ahead",
    "stand-for-one-another": "the calls may stand for one another",
}


@sentence.register
def _(fact: May) -> str:
    return _MAY[fact.deed].format(who=ranks_text(fact.ranks) if fact.ranks else "another rank")


@sentence.register
def _(fact: ComparedCall) -> str:
    call = f"{fact.op} of shape [{fact.shape}]" if fact.shape else fact.op
    if not fact.ranks:
        return call
    at = f" in {place(fact.where)}" if fact.where is not None else ""
    return f"{ranks_text(fact.ranks)} called {call}{at}"


@doing.register
def _(fact: ComparedCall) -> str:
    return f"called {fact.op} of shape [{fact.shape}]" if fact.shape else f"called {fact.op}"


@sentence.register
def _(fact: ComparedCallsDiffer) -> str:
    return "the ranks called different collectives: " + "; ".join(map(sentence, fact.sides))


@sentence.register
def _(fact: OddCall) -> str:
    return f"{'; '.join(map(sentence, fact.odd))}, where {sentence(fact.usual)}"


@sentence.register
def _(_fact: ComparedBeforehand) -> str:
    return "torch compared the calls before they were made"


@sentence.register
def _(fact: LoggedCall) -> str:
    if not fact.op:
        return "a collective"
    if fact.op == "monitoredBarrier":
        return "a monitored barrier"
    number = f" {fact.seq}" if fact.seq is not None else ""
    barrier = " of one element (usually a barrier)" if fact.op == "ALLREDUCE" and fact.numel == 1 else ""
    return f"{fact.op}{number}{barrier}"


@sentence.register
def _(fact: WaitedInVain) -> str:
    return (
        f"{ranks_text(fact.ranks)} waited in {sentence(fact.call)} until the time was over; "
        f"{ranks_text(fact.absent)} did not come to it"
    )


@sentence.register
def _(fact: DidNotCome) -> str:
    return f"did not come to {sentence(fact.call)}"


@sentence.register
def _(fact: RanIntoTimeLimit) -> str:
    return f"{ranks_text(fact.ranks)} ran into the time limit of {sentence(fact.call)}"


@sentence.register
def _(fact: ToldNoTimeLimit) -> str:
    return f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'tell')} of no time limit"


@sentence.register
def _(fact: BarrierNames) -> str:
    return f"the monitored barrier names {ranks_text(fact.ranks)} as not arrived"


@sentence.register
def _(fact: HadEntered) -> str:
    who = ranks_text(fact.ranks)
    return f"{who} had entered collective {fact.seq}{' and waited in it' if fact.waited else ', and no later one'}"


@sentence.register
def _(fact: WaitedIn) -> str:
    return f"{ranks_text(fact.ranks)} {_waited_in(fact)}"


@doing.register
def _(fact: WaitedIn) -> str:
    return _waited_in(fact)


def _waited_in(fact: WaitedIn) -> str:
    return f"waited in {fact.call.op} of {fact.call.numel} elements"


@sentence.register
def _(fact: OperationsDiffer) -> str:
    return f"at collective {fact.seq} the ranks made different calls: {'; '.join(map(sentence, fact.sides))}"


@sentence.register
def _(_fact: NeverMatch) -> str:
    return "operations that differ at one place of the sequence never match"


@sentence.register
def _(fact: LastLine) -> str:
    if fact.line is None:
        return f"no line of rank {fact.rank} is in the logs"
    silent = f", silent for {span(fact.silent_s)}" if fact.silent_s is not None and fact.silent_s >= 1 else ""
    if not silent and fact.ago_s is not None:
        silent = f", {span(fact.ago_s)} before the log was read"
    whose = "the log" if fact.rank is None else f"rank {fact.rank}"
    return f"the last line of {whose} is {fact.line!r}{silent}"


@sentence.register
def _(fact: NeverFinished) -> str:
    return (
        f"{ranks_text(fact.ranks)}, which is every rank, entered {sentence(fact.call)}, and it did not finish "
        "within its time limit"
    )


@sentence.register
def _(fact: JoinedStore) -> str:
    if fact.joined > fact.world:
        return f"worker_count={fact.joined} is more than world_size={fact.world}"
    return f"{fact.joined} of {fact.world} ranks have joined"


@sentence.register
def _(fact: StaleStore) -> str:
    return (
        f"{fact.joined} processes have joined a process group of {fact.world}: the store still counts those of an "
        "earlier attempt"
    )


@sentence.register
def _(fact: NotAtInit) -> str:
    who = ranks_text(fact.ranks) if fact.ranks else f"{fact.missing} of {fact.world} ranks"
    return f"{who} did not reach init_process_group; the others wait there"


@sentence.register
def _(fact: DidNotReach) -> str:
    return f"did not reach {'the first collective' if fact.call == 'first collective' else fact.call}"


@sentence.register
def _(fact: MasterAbsent) -> str:
    return f"rank 0 did not reach the first collective, for which {ranks_text(fact.waiting)} waited"


@sentence.register
def _(_fact: MasterHandsOutId) -> str:
    return "rank 0 hands out NCCL's id at its first collective; the others asked for it in vain"


@headline.register
def _(fact: PeerWentAway) -> str:
    return f"the process with local rank {fact.local_rank} went away; NCCL noticed its closed connection"


@sentence.register
def _(fact: PeerWentAway) -> str:
    return f"'Connection closed by localRank {fact.local_rank}' names it"


@headline.register
def _(fact: WroteKnown) -> str:
    return f"{who(fact.rank)} says that {MEANINGS[fact.known]}"


@sentence.register
def _(fact: WroteKnown) -> str:
    return f"{who(fact.rank)} wrote: {fact.line}" if fact.line else MEANINGS[fact.known]


@doing.register
def _(fact: WroteKnown) -> str:
    return MEANINGS[fact.known]


@sentence.register
def _(fact: OnlySuffered) -> str:
    who = ranks_text(fact.ranks) if fact.ranks else "the ranks in these logs"
    return f"{who} only suffered ({MEANINGS[fact.known]}); who began it is not in these logs"


@sentence.register
def _(fact: Suffered) -> str:
    return f"{f'rank {fact.rank}' if fact.rank is not None else 'a rank'}: {MEANINGS[fact.known]}"


@sentence.register
def _(fact: FellSilent) -> str:
    return f"{ranks_text(fact.ranks)} fell silent {span(fact.silent_s)} before the logs end; no message says why"
