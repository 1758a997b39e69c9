"""Korean words for a GPU, or a machine, whose memory ran out."""

from __future__ import annotations

from rankscope.diagnosis.facts import memory as facts
from rankscope.report.plain_text import size
from rankscope.report.words.ko import sentence
from rankscope.report.words.ko.advice import ADVICE
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.ko.phrases import ranks_text
from rankscope.report.words.memory import MOST_PIDS


@sentence.register
def _(fact: facts.GpuFilled) -> str:
    asked = f", {size(fact.asked)}를 더 요청했다" if fact.asked else ""
    limit = f"; 프로그램이 스스로 정한 한도는 {size(fact.allowed)}다" if fact.allowed else ""
    return (
        f"{Word(f'랭크 {fact.rank}'):이} 텐서로 {size(fact.allocated)}, torch의 예비로 {size(fact.idle)}를 "
        f"쥐고 있었다{asked}; "
        f"GPU {fact.device}의 전체는 {size(fact.total)}, 그중 빈 것은 {size(fact.free)}였다{limit}"
    )


@sentence.register
def _(fact: facts.GpuShared) -> str:
    more = f" 외 {len(fact.pids) - MOST_PIDS}개" if len(fact.pids) > MOST_PIDS else ""
    pids = ", ".join(map(str, fact.pids[:MOST_PIDS]))
    ours = f"; 그중 {Word(ranks_text(fact.ranks)):은} 이 작업의 것이다" if fact.ranks else ""
    return f"다른 프로세스들이 그 GPU에서 {size(fact.bytes)}를 쥐고 있었다: pid {pids}{more}{ours}"


@sentence.register
def _(fact: facts.GpuGrew) -> str:
    return (
        f"{Word(f'랭크 {fact.rank}'):은} 첫 스텝 뒤에 {size(fact.first)}를 쥐었고, 그 뒤 {fact.steps} 스텝 동안 "
        f"스텝마다 {size(fact.bytes_per_step)}씩 늘었다"
    )


@sentence.register
def _(fact: facts.LiveTensors) -> str:
    kinds = ", ".join(f"{kind} {count:,}개({size(number)})" for count, kind, number in fact.kinds)
    rest = max(0, fact.allocated - fact.in_all)
    graphs = f"; 나머지 {size(rest)}는 autograd 그래프나 torch 내부가 쥐고 있다" if rest > fact.allocated // 4 else ""
    return f"랭크 {fact.rank}의 프로그램이 쥔 가장 큰 텐서: {kinds}{graphs}"


@sentence.register
def _(fact: facts.HeldAt) -> str:
    lines = ", ".join(f"{line}에서 {size(number)}" for line, number in fact.lines)
    return f"torch의 할당 기록에 따르면 랭크 {fact.rank}: {lines}"


@sentence.register
def _(fact: facts.HostGrew) -> str:
    if fact.steps:
        each = size((fact.last - fact.first) // fact.steps)
        when = (
            f"첫 스텝 뒤에 {size(fact.first)}, 그 뒤 {fact.steps} 스텝 만에 {size(fact.last)}였다(스텝마다 약 {each})"
        )
    else:
        when = f"처음에 {size(fact.first)}, {fact.seconds:.0f}초 뒤에 {size(fact.last)}였다"
    return f"랭크 {fact.rank} 프로세스의 메모리는 {when}"


ADVICE.update(
    {
        "find-what-grows": "메모리가 스텝마다 늘어난다: 배치, 출력, 손실을 쌓아 두는 리스트, 사전, 캐시를 찾고, "
        "거기에 .detach() 없이 넣은 텐서가 없는지 본다",
        "keep-no-graphs": "메모리가 스텝마다 늘어난다: 목록이나 합계에는 loss가 아니라 loss.item()이나 "
        "loss.detach()를 넣는다. loss는 그래프 전체를 붙들고 있다",
        "use-expandable-segments": "상당 부분이 torch의 예비다: "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True로 둔다",
    }
)
