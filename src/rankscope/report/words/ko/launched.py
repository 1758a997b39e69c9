"""Korean words for what NCCL and the GPUs themselves tell of a job."""

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
from rankscope.report.words.ko import doing, sentence
from rankscope.report.words.ko.advice import ADVICE
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.ko.phrases import ranks_text, span
from rankscope.report.words.launched import against

ADVICE.update(
    {
        "record-nccl": "`rankscope run`으로 시작하거나 TORCH_FR_BUFFER_SIZE=2000과 "
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/nccl_ask_를 주고 시작한다: 그러면 `rankscope attach`가 어떤 호출이 각 "
        "GPU를 붙잡고 있는지 torch의 기록기에 물을 수 있다",
        "ras-on": "NCCL이 답하게 한다(2.24 이상, NCCL_RAS_ENABLE이 0이 아님, 작업마다 NCCL_RAS_ADDR 하나): 준비 없이도 "
        "어느 랭크가 덜 시작했는지 안다",
        "attach-there": "덜 시작한 랭크들의 머신에서 `rankscope attach`를 쓴다: 다른 랭크들이 이들을 기다린다",
        "look-at-silent-host": "응답하지 않는 프로세스의 머신을 살펴본다",
    }
)


def _times(operation: str) -> Word:
    """NCCL before 2.26 counts all operations together."""
    return Word("연산" if operation == "collective" else f"{operation} 호출")


@sentence.register
def _(fact: LaunchCount) -> str:
    return f"{ranks_text(fact.ranks):이} {fact.count}개를 시작했다"


@sentence.register
def _(fact: Apart) -> str:
    sides = ", ".join(f"{ranks_text(side.ranks):은} {side.count}개" for side in fact.sides)
    still = f", {span(fact.over_s)} 동안 더 늘지 않았다" if fact.over_s >= 1 else ""
    return f"랭크 {fact.size}개짜리 communicator에서 NCCL이 센 {_times(fact.operation)} 수: {sides}{still}"


@sentence.register
def _(fact: Behind) -> str:
    own, others = against(fact.ranks, fact.apart)
    return (
        f"{ranks_text(fact.ranks):은} {_times(fact.apart.operation):을} {own}개 시작했고, 다른 랭크들은 {others}개 "
        "시작했다"
    )


@sentence.register
def _(fact: Ahead) -> str:
    own, others = against(fact.ranks, fact.apart)
    return f"{ranks_text(fact.ranks)}만 {_times(fact.apart.operation):을} {own}개 시작했고, 다른 랭크들은 {others}개다"


@sentence.register
def _(fact: OnOtherWay) -> str:
    pieces = []
    for apart in fact.apart:
        own, others = against(fact.ranks, apart)
        pieces.append(f"{_times(apart.operation)} {own}개 대 {others}개")
    return f"{ranks_text(fact.ranks):이} 나머지와 다른 호출을 시작했다: {', '.join(pieces)}"


@doing.register
def _(fact: Behind) -> str:
    own, others = against(fact.ranks, fact.apart)
    return f"다른 랭크들보다 {_times(fact.apart.operation)} {others - own}개 뒤처졌다"


@doing.register
def _(fact: Ahead) -> str:
    own, others = against(fact.ranks, fact.apart)
    return f"다른 랭크들보다 {_times(fact.apart.operation)} {own - others}개 앞섰다"


@doing.register
def _(_fact: OnOtherWay) -> str:
    return "나머지와 다른 호출을 시작했다"


@sentence.register
def _(fact: TwoSides) -> str:
    sides = ", ".join(f"{ranks_text(side.ranks)} {side.count}개" for side in fact.apart.sides)
    what = _times(fact.apart.operation)
    return f"랭크들이 시작한 호출이 서로 다르고, 어느 쪽이 이상한지는 분명하지 않다: {what} {sides}"


@sentence.register
def _(fact: LaunchedAlike) -> str:
    where = "communicator" if fact.communicators == 1 else f"communicator {fact.communicators}개"
    return f"NCCL이 보기에 {where}의 모든 랭크에서 집합 호출 수가 같다; send와 receive는 세지 않는다"


@sentence.register
def _(fact: DoNotAnswer) -> str:
    shown = ", ".join(f"{host}의 {pid}" for pid, host in fact.processes[:8])
    what = Word("프로세스" if len(fact.processes) == 1 else f"프로세스 {len(fact.processes)}개")
    return f"NCCL이 {what:을} 포기했다: {shown}" if fact.dead else f"NCCL이 {what}의 응답을 받지 못한다: {shown}"


@sentence.register
def _(fact: SpinsForGpu) -> str:
    return f"{ranks_text(fact.ranks):이} {fact.call}에서 GPU를 기다린다: 프로세서 시간은 일한 것이 아니다"


@sentence.register
def _(fact: GpuAtWork) -> str:
    does = {True: "일한다", False: "일하지 않는다", None: "일하는지 드러나지 않는다"}[fact.works]
    numbers = [
        f"SM {fact.sm:.1%}" if fact.sm is not None else "",
        f"연산 {fact.arithmetic:.2%}" if fact.arithmetic is not None else "",
        f"메모리 {fact.memory:.2%}" if fact.memory is not None else "",
        f"{fact.power_w:.0f} W" if fact.power_w is not None else "",
    ]
    read = ", ".join(filter(None, numbers))
    util = fact.utilization_percent
    though = f"; 사용률 {util} %는 기다리는 커널의 것이다" if fact.works is False and util else ""
    return f"{ranks_text(fact.ranks)}의 GPU {Word(fact.index):은} {does}{f' ({read})' if read else ''}{though}"


@sentence.register
def _(fact: StandsOnGpu) -> str:
    return (
        f"{ranks_text(fact.ranks):이} GPU를 기다리며 {span(fact.over_s)} 동안 나아가지 못했다; 어느 랭크에서 "
        "시작되었는지는 관측된 것만으로 알 수 없다"
    )


@sentence.register
def _(fact: GpusWork) -> str:
    return f"이상이 보이지 않는다: {ranks_text(fact.ranks):이} GPU를 기다리고 GPU는 일한다"
