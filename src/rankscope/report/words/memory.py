"""Words for a GPU, or a machine, whose memory ran out."""

from __future__ import annotations

from rankscope.diagnosis.facts import memory as facts
from rankscope.report.plain_text import size
from rankscope.report.words import sentence
from rankscope.report.words.advice import ADVICE
from rankscope.report.words.phrases import ranks_text

MOST_PIDS = 4


@sentence.register
def _(fact: facts.GpuFilled) -> str:
    asked = f", and asked for {size(fact.asked)} more" if fact.asked else ""
    limit = f"; the program may use {size(fact.allowed)} of it, its own limit" if fact.allowed else ""
    return (
        f"rank {fact.rank} held {size(fact.allocated)} in tensors and {size(fact.idle)} in torch's reserve{asked}; "
        f"GPU {fact.device} has {size(fact.total)}, of which {size(fact.free)} were free{limit}"
    )


@sentence.register
def _(fact: facts.GpuShared) -> str:
    more = f" and {len(fact.pids) - MOST_PIDS} more" if len(fact.pids) > MOST_PIDS else ""
    pids = ", ".join(map(str, fact.pids[:MOST_PIDS]))
    ours = f"; {ranks_text(fact.ranks)} of this job among them" if fact.ranks else ""
    return f"other processes held {size(fact.bytes)} of that GPU: pid {pids}{more}{ours}"


@sentence.register
def _(fact: facts.GpuGrew) -> str:
    return (
        f"rank {fact.rank} held {size(fact.first)} after its first step and {size(fact.bytes_per_step)} more with "
        f"every step since, {fact.steps} of them"
    )


@sentence.register
def _(fact: facts.LiveTensors) -> str:
    kinds = ", ".join(f"{count:,} of {kind} ({size(number)})" for count, kind, number in fact.kinds)
    rest = max(0, fact.allocated - fact.in_all)
    graphs = f"; {size(rest)} more are held by autograd graphs or inside of torch" if rest > fact.allocated // 4 else ""
    return f"the largest tensors that rank {fact.rank}'s program holds: {kinds}{graphs}"


@sentence.register
def _(fact: facts.HeldAt) -> str:
    lines = ", ".join(f"{size(number)} at {line}" for line, number in fact.lines)
    return f"by torch's history of allocations, rank {fact.rank} held {lines}"


@sentence.register
def _(fact: facts.HostGrew) -> str:
    if fact.steps:
        each = size((fact.last - fact.first) // fact.steps)
        when = f"after its first step and {size(fact.last)} after {fact.steps} more, about {each} with each of them"
    else:
        when = f"at first and {size(fact.last)} {fact.seconds:.0f} s later"
    return f"rank {fact.rank}'s process held {size(fact.first)} of memory {when}"


ADVICE.update(
    {
        "find-what-grows": "memory grows from step to step: look for a list, dictionary or cache that keeps batches, "
        "outputs or losses, and for tensors put into it without .detach()",
        "keep-no-graphs": "memory grows from step to step: append loss.item() or loss.detach() to lists and sums, not "
        "the loss itself, which keeps its whole graph",
        "use-expandable-segments": "much of it is torch's own reserve: set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    }
)
