"""Words for what was seen of a job in which nothing was found wrong: it ended well, goes on, or nobody can tell."""

from __future__ import annotations

from rankscope.diagnosis.facts.nothing_found import (
    AllWell,
    CollectorNote,
    CouldNotRead,
    EndedMeanwhile,
    EndedWithZero,
    InUnfinished,
    JudgedBefore,
    LastLinesDiffer,
    LauncherAlone,
    LoggedSteps,
    LogsEnd,
    Looked,
    MayStand,
    NoEndTold,
    NoLogOf,
    NoRank,
    NoRankFound,
    NoRankNamed,
    NoRankVariable,
    NothingToRead,
    NotUsed,
    OneLook,
    Phase,
    RunsOn,
    SaidDone,
    SeenToMove,
    StoodStill,
)
from rankscope.report.words import headline, sentence
from rankscope.report.words.advice import ADVICE
from rankscope.report.words.phrases import place, ranks_text, span, verb

ADVICE.update(
    {
        "read-its-verdict": "read verdict.json or report.html in the run's folder: they were written when it ended",
        "stacks-twice": "take the stacks twice, some seconds apart, and give both: one look does not tell slow from "
        "stuck",
        "give-logs": "give the logs of all ranks to rankscope diagnose too: how a job ended stands in their last lines",
        "give-rank-logs": "give a log in which lines name their rank, torch's dumps or py-spy's stacks: `rankscope "
        "diagnose --help` lists what is read",
        "what-diagnose-reads": "give the folder of a run, logs of the ranks, torch's dumps or py-spy's stacks: "
        "`rankscope diagnose --help` lists what is read",
        "attach-as-its-user": "attach as the user of the job, or as root, and inside its container",
        "allow-ptrace": "allow stacks to be read: `sysctl kernel.yama.ptrace_scope=0`, or --cap-add SYS_PTRACE for a "
        "container; py-spy must be installed",
        "give-ranks-by-pid": "give the ranks, or their launcher, with --pid: `pgrep -af python` lists processes",
        "try-again-soon": "try again in some seconds, when the ranks have loaded torch",
        "exit-code-of-launcher": "look at what the launcher says: it knows the exit codes",
    }
)

_IN_PHASE: dict[Phase, str] = {
    "init": "while the process group is set up",
    "barrier": "at a barrier",
    "forward": "in the forward or backward pass",
    "batch": "at the first batch",
    "save": "while saving",
    "evaluate": "in the evaluation",
    "model": "while the model is made",
    "data": "while data is prepared or loaded",
    "logger": "at a logger",
    "step": "between steps",
    "stage": "in a stage that was begun and not left",
    "unknown": "",
}
_MAY_STAND: dict[str, str] = {
    "collective-skipped": "a rank may not join a collective that the others are in",
    "slow-rank": "a rank may still be at work and say nothing",
    "gpu-stuck": "a kernel or a GPU may not finish",
    "killed": "the processes may be gone: killed without a word, as by the memory killer or a scheduler",
    "dataloader-stuck": "a data-loading worker may not deliver its batch",
    "blocked-call": "a call to the outside (network, file system, service) may not return",
    "lock-wait": "ranks may wait for a lock, as one that a dead process left behind",
    "rank-missing": "a rank may never have started, or not have come to init_process_group",
    "address-unreachable": "MASTER_ADDR may not answer",
    "uneven-data": "a rank may have fewer batches than the others",
    "comm-error": "the gathering itself may not finish: a link between GPUs, or casts of mixed precision in the first "
    "pass; large models take minutes for it",
}
_IN_COLLECTIVE: dict[Phase, str] = {
    "forward": "a rank may not join the first collective of the pass: DDP's broadcast or reduction, FSDP's gathering "
    "of parameters",
    "batch": "a rank may not join the first collective of the pass: DDP's broadcast or reduction, FSDP's gathering "
    "of parameters",
    "barrier": "a rank may not come to the barrier",
    "model": "a rank may not join the collectives in which DDP or FSDP compare and spread the model",
    "save": "only some ranks may save, and the state is gathered by all",
}


@sentence.register
def _(fact: AllWell) -> str:
    return f"all {fact.world} ranks are well"


@sentence.register
def _(fact: EndedWithZero) -> str:
    return f"all {fact.world} ranks ended with code 0" if fact.world > 1 else "the only rank ended with code 0"


@sentence.register
def _(fact: SeenToMove) -> str:
    return f"nothing wrong is seen: {ranks_text(fact.ranks)} {verb(fact.ranks, 'move')}"


@sentence.register
def _(fact: Looked) -> str:
    at = f" at {place(fact.where)}" if fact.where is not None else ""
    return f"rank {fact.rank}{at}: {'; '.join(map(sentence, fact.seen)) or 'nothing could be seen'}"


def _of(ranks: tuple[int, ...]) -> str:
    return f" of {ranks_text(ranks)}" if ranks else ""


@sentence.register
def _(fact: LoggedSteps) -> str:
    ago = f", {span(fact.ago_s)} before it was read" if fact.ago_s is not None else ""
    return f"the log{_of(fact.ranks)} counts steps up to {fact.last}{ago}"


@sentence.register
def _(fact: SaidDone) -> str:
    return f"the log{_of(fact.ranks)} ends with {fact.line!r}"


@sentence.register
def _(fact: NothingToRead) -> str:
    if fact.refused:
        return "nothing that was given can be read as evidence of a job"
    return "nothing was given that can be read: no file is there"


@sentence.register
def _(fact: NotUsed) -> str:
    return f"not used: {fact.what}"


@sentence.register
def _(fact: CollectorNote) -> str:
    return f"{fact.what}: {fact.why}"


@sentence.register
def _(fact: NoRankNamed) -> str:
    lines = f"{fact.lines} line{'' if fact.lines == 1 else 's'}"
    return f"nothing in {lines} of text names a rank, a failure or an end"


@headline.register
def _(fact: LogsEnd) -> str:
    when = f" {span(fact.ago_s)} ago" if fact.ago_s is not None else ""
    at = f" {_IN_PHASE[fact.phase]}" if _IN_PHASE[fact.phase] else ""
    if not fact.ranks:
        return f"the log falls silent{at}{when}; it does not tell whether the job stands or is gone"
    verb_ = "falls silent" if len(fact.ranks) == 1 else "fall silent"
    return f"{ranks_text(fact.ranks)} {verb_}{at}{when}; the logs do not tell whether the job stands or is gone"


@sentence.register
def _(fact: LogsEnd) -> str:
    return headline(fact)


@sentence.register
def _(fact: LastLinesDiffer) -> str:
    return f"the last lines of {ranks_text(fact.ranks)} speak of something else than those of {ranks_text(fact.others)}"


@sentence.register
def _(fact: JudgedBefore) -> str:
    return f"the run's own verdict was {fact.outcome.upper()}; its evidence cannot be read, and the logs do not tell"


@sentence.register
def _(_fact: NoEndTold) -> str:
    return "no exception, no exit code and no known message is in the logs"


@sentence.register
def _(fact: NoLogOf) -> str:
    return f"no line of {ranks_text(fact.ranks)} is in the logs"


@sentence.register
def _(fact: InUnfinished) -> str:
    return f"rank {fact.rank} was in {sentence(fact.call)}"


@sentence.register
def _(fact: OneLook) -> str:
    which = f"; {ranks_text(fact.unfinished)} had not finished a call when they were written" if fact.unfinished else ""
    return f"nothing in these files shows that something is wrong, nor that the job went on{which}"


@sentence.register
def _(fact: StoodStill) -> str:
    parts = []
    if fact.ranks:
        parts.append(f"{ranks_text(fact.ranks)} stood still meanwhile, and nothing shows why or who waits for them")
    if fact.busy:
        parts.append(f"{ranks_text(fact.busy)} used the processor and came nowhere that could be seen")
    if fact.moving:
        parts.append(f"{ranks_text(fact.moving)} {verb(fact.moving, 'move')}")
    return "; ".join(parts)


@sentence.register
def _(fact: CouldNotRead) -> str:
    return f"no stack of {ranks_text(fact.ranks)} could be read: {fact.why}"


@sentence.register
def _(fact: EndedMeanwhile) -> str:
    if not fact.ranks:
        return "no rank of the job is left"
    return f"{ranks_text(fact.ranks)} ended while the job was watched; with which code only the launcher knows"


@sentence.register
def _(_fact: NoRankFound) -> str:
    return "no rank of a distributed job runs here that may be looked into: no Python process with torch and a rank"


def _processes(pids: tuple[int, ...]) -> str:
    return f"process {pids[0]}" if len(pids) == 1 else f"processes {', '.join(map(str, pids[:8]))}"


@sentence.register
def _(fact: NoRank) -> str:
    what = f" ({fact.command[:60]})" if fact.command else ""
    ranks = "is a rank" if len(fact.pids) == 1 else "are ranks"
    return f"nothing shows that {_processes(fact.pids)}{what} {ranks} of a job"


@sentence.register
def _(fact: LauncherAlone) -> str:
    return f"process {fact.pid} is a launcher, and none of its ranks has loaded torch yet: {fact.command[:80]}"


@sentence.register
def _(fact: NoRankVariable) -> str:
    return f"the environment of {_processes(fact.pids)} names no rank, and no stack stands in torch.distributed"


@sentence.register
def _(fact: RunsOn) -> str:
    return f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'run')} on {fact.host}"


@sentence.register
def _(fact: MayStand) -> str:
    if fact.cause == "collective-skipped":
        return _IN_COLLECTIVE.get(fact.phase, _MAY_STAND[fact.cause])
    return _MAY_STAND[fact.cause]
