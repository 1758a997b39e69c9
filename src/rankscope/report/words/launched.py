"""Words for what NCCL and the GPUs themselves tell of a job."""

from __future__ import annotations

from rankscope.diagnosis.facts.launched import (
    Ahead,
    Apart,
    Behind,
    DoNotAnswer,
    GpuAtWork,
    GpusWork,
    LaunchCount,
    LaunchedAlike,
    OnOtherWay,
    SpinsForGpu,
    StandsOnGpu,
    TwoSides,
)
from rankscope.report.words import doing, sentence
from rankscope.report.words.advice import ADVICE
from rankscope.report.words.phrases import ranks_text, span, verb

ADVICE.update(
    {
        "record-nccl": "start it with `rankscope run`, or with TORCH_FR_BUFFER_SIZE=2000 and "
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/nccl_ask_: then `rankscope attach` can ask torch's recorder which call "
        "holds each GPU",
        "ras-on": "let NCCL answer (2.24 or newer, NCCL_RAS_ENABLE not 0, one NCCL_RAS_ADDR a job): it knows without "
        "preparation which rank launched less",
        "attach-there": "`rankscope attach` on the machine of the ranks that have launched less: others wait for them",
        "look-at-silent-host": "look at the machines of the processes that do not answer",
    }
)


def _have(ranks: tuple[int, ...]) -> str:
    return "has" if len(set(ranks)) == 1 else "have"


def _times(operation: str) -> str:
    """NCCL before 2.26 counts all operations together."""
    return "operations" if operation == "collective" else f"{operation} calls"


@sentence.register
def _(fact: LaunchCount) -> str:
    return f"{ranks_text(fact.ranks)} {_have(fact.ranks)} launched {fact.count}"


@sentence.register
def _(fact: Apart) -> str:
    sides = ", ".join(f"{ranks_text(side.ranks)} {side.count}" for side in fact.sides)
    still = f", and none more in {span(fact.over_s)}" if fact.over_s >= 1 else ""
    return f"NCCL's count of {_times(fact.operation)} in the communicator of {fact.size}: {sides}{still}"


def against(ranks: tuple[int, ...], apart: Apart) -> tuple[int, int]:
    """The count of these ranks, and of most others."""
    own = next((side.count for side in apart.sides if set(side.ranks) & set(ranks)), apart.sides[0].count)
    rest = [side for side in apart.sides if not set(side.ranks) & set(ranks)]
    return own, max(rest, key=lambda side: len(side.ranks)).count if rest else own


@sentence.register
def _(fact: Behind) -> str:
    own, others = against(fact.ranks, fact.apart)
    return (
        f"{ranks_text(fact.ranks)} {_have(fact.ranks)} launched {own} {_times(fact.apart.operation)} "
        f"where the others launched {others}"
    )


@sentence.register
def _(fact: Ahead) -> str:
    own, others = against(fact.ranks, fact.apart)
    return (
        f"{ranks_text(fact.ranks)} alone {_have(fact.ranks)} launched {own} {_times(fact.apart.operation)}, "
        f"the others {others}"
    )


@sentence.register
def _(fact: OnOtherWay) -> str:
    pieces = []
    for apart in fact.apart:
        own, others = against(fact.ranks, apart)
        pieces.append(f"{own} {_times(apart.operation)} against {others}")
    return f"{ranks_text(fact.ranks)} {_have(fact.ranks)} launched other calls than the rest: {', '.join(pieces)}"


@doing.register
def _(fact: Behind) -> str:
    own, others = against(fact.ranks, fact.apart)
    return f"{others - own} {_times(fact.apart.operation)} behind the others"


@doing.register
def _(fact: Ahead) -> str:
    own, others = against(fact.ranks, fact.apart)
    return f"{own - others} {_times(fact.apart.operation)} ahead of the others"


@doing.register
def _(_fact: OnOtherWay) -> str:
    return "has launched other calls than the rest"


@sentence.register
def _(fact: TwoSides) -> str:
    sides = ", ".join(f"{ranks_text(side.ranks)} {side.count}" for side in fact.apart.sides)
    what = _times(fact.apart.operation)
    return f"the ranks have not launched the same, and no side is clearly the odd one: {what} of {sides}"


@sentence.register
def _(fact: LaunchedAlike) -> str:
    where = "its communicator" if fact.communicators == 1 else f"its {fact.communicators} communicators"
    return f"NCCL sees the same number of collective calls on every rank of {where}; send and receive it does not count"


@sentence.register
def _(fact: DoNotAnswer) -> str:
    shown = ", ".join(f"{pid} on {host}" for pid, host in fact.processes[:8])
    what = "process" if len(fact.processes) == 1 else f"{len(fact.processes)} processes"
    how = "NCCL has given up" if fact.dead else "NCCL gets no answer from"
    return f"{how} {what}: {shown}"


@sentence.register
def _(fact: SpinsForGpu) -> str:
    return (
        f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'wait')} for the GPU in {fact.call}: the processor time is no work"
    )


@sentence.register
def _(fact: GpuAtWork) -> str:
    does = {True: "works", False: "does no work", None: "does not show whether it works"}[fact.works]
    numbers = [
        f"SMs {fact.sm:.1%}" if fact.sm is not None else "",
        f"arithmetic {fact.arithmetic:.2%}" if fact.arithmetic is not None else "",
        f"memory {fact.memory:.2%}" if fact.memory is not None else "",
        f"{fact.power_w:.0f} W" if fact.power_w is not None else "",
    ]
    read = ", ".join(filter(None, numbers))
    util = fact.utilization_percent
    though = f"; its utilisation of {util} % is that of waiting kernels" if fact.works is False and util else ""
    return f"GPU {fact.index} of {ranks_text(fact.ranks)} {does}{f' ({read})' if read else ''}{though}"


@sentence.register
def _(fact: StandsOnGpu) -> str:
    return (
        f"{ranks_text(fact.ranks)} {verb(fact.ranks, 'wait')} for the GPU and got nowhere in {span(fact.over_s)}; "
        "nothing that was seen tells which rank began it"
    )


@sentence.register
def _(fact: GpusWork) -> str:
    gpus = "its GPU works" if len(set(fact.ranks)) == 1 else "their GPUs work"
    return f"nothing wrong is seen: {ranks_text(fact.ranks)} {verb(fact.ranks, 'wait')} for the GPU, and {gpus}"
