"""Korean words for jobs whose ranks stand, and for stages."""

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
from rankscope.report.words.ko import headline, sentence
from rankscope.report.words.ko.advice import ADVICE
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.ko.phrases import NO_LINE, place, ranks_text

ADVICE.update(
    {
        "start-with-probe": "프로브를 켜고 작업을 시작한다: 집합 통신의 순서가 랭크들이 갈라진 곳을 보여 준다",
        "network-between-hosts": "이 랭크들의 호스트 사이 네트워크를 살펴본다",
        "raise-time-limit": "제한을 늘린다: init_process_group(timeout=timedelta(...))을 한 랭크만 일하는 가장 긴 "
        "구간보다 길게 준다",
        "work-before-group": "또는 그 일을 프로세스 그룹이 생기기 전이나 모든 랭크에서 한다",
        "look-at-missing-host": "빠진 랭크들의 호스트를 살펴본다: 프로세스가 살아 있는가, 로그가 이어지는가?",
        "start-with-rankscope": "`rankscope run`으로 작업을 시작한다: 랭크들의 호출이 기록된다",
        "look-at-other-hosts": "다른 호스트의 랭크들과 그 사이의 네트워크를 살펴본다",
        "logger-on-rank-0": "로거는 랭크 0에서만 만들거나, 다른 랭크에는 WANDB_MODE=disabled(또는 offline)를 준다",
        "logger-time-limit": "로거의 서비스에 시간 제한을 준다: wandb.init(settings=wandb.Settings(init_timeout=60))",
        "name-the-strategy": "모든 랭크가 같은 것을 고르도록 전략을 직접 지정한다: 'auto' 대신 Trainer(strategy='ddp')",
        "all-ranks-started": "모든 랭크가 시작되었는지, 같은 MASTER_ADDR, MASTER_PORT, NCCL_* 변수를 보는지 확인한다",
        "fetch-before": "토크나이저, 모델, 데이터를 작업 전에 한 번, 또는 랭크 0에서 먼저 받아 두고 작업에는 "
        "HF_HUB_OFFLINE=1을 준다",
        "cache-on-shared-disk": "캐시(HF_HOME)를 모든 랭크가 읽고 잠글 수 있는 디스크에 둔다",
        "directory-on-rank-0": "디렉터리는 랭크 0에서만 만들고 dist.barrier()를 부르거나, os.makedirs(path, "
        "exist_ok=True)를 쓴다",
        "before-group": "init_process_group 전이라면: 어느 랭크가 왜 오지 않았는지 본다. 다른 랭크들은 설계대로 "
        "기다린다",
        "during-group": "그 도중이라면: 모든 랭크에서 MASTER_ADDR과 MASTER_PORT로 랭크 0에 닿아야 한다; --comm-debug가 "
        "NCCL이 무엇을 만나는지 보여 준다",
    }
)


@sentence.register
def _(fact: InCall) -> str:
    at = place(fact.where) if fact.where is not None else NO_LINE
    return f"{ranks_text(fact.ranks):이} {at}의 {fact.op}에서 기다린다"


@sentence.register
def _(fact: AllWait) -> str:
    return "모든 랭크가 서로를 기다린다: " + "; ".join(map(sentence, fact.calls))


@sentence.register
def _(fact: NothingMoved) -> str:
    return f"{fact.for_s:.0f}초 동안 아무것도 움직이지 않았다"


@sentence.register
def _(fact: SoDo) -> str:
    return f"{headline(fact.first)}; {ranks_text(fact.others)}도 그렇다"


@sentence.register
def _(fact: BeyondTimeLimit) -> str:
    return f"{headline(fact.summary)}. {ranks_text(fact.ranks):이} 기다린 집합 통신의 시간 제한보다 길었다"


@sentence.register
def _(fact: TimedOut) -> str:
    return f"{ranks_text(fact.ranks):이} 집합 통신의 시간 초과로 끝났다"


@sentence.register
def _(fact: CameLate) -> str:
    waited = f"{ranks_text(fact.ranks):이} {fact.limit_s:.1f}초 뒤에 포기하고 나서"
    return f"{waited} {fact.late_s:.1f}초 늦게 {ranks_text((fact.rank,)):이} {place(fact.where)}의 {fact.op}에 왔다"


@sentence.register
def _(fact: AwaitsUnseen) -> str:
    told = "여기서는 아무것도 볼 수 없었다" if fact.unseen else "무엇을 기다리는지 알려 주는 것이 없다"
    return (
        f"{ranks_text(fact.ranks):이} {ranks_text(fact.awaited):을} 기다린다. {ranks_text(fact.awaited)}에 대해서는 "
        f"{told}"
    )


@sentence.register
def _(fact: NoEvidence) -> str:
    return f"{ranks_text(fact.ranks)}의 증거가 없다"


@sentence.register
def _(fact: NoRecord) -> str:
    return f"{ranks_text(fact.ranks):이} torch 안에 서 있고, 그 호출의 기록이 없다"


@sentence.register
def _(fact: ConnectionLost) -> str:
    return f"{ranks_text(fact.ranks):이} 다른 랭크와의 연결을 잃었고, 무엇이 시작이었는지는 보이지 않았다"


@sentence.register
def _(fact: EndedFirst) -> str:
    return f"랭크 {Word(fact.rank):이} 먼저 끝났다: {fact.message}"


@sentence.register
def _(fact: InStage) -> str:
    return f"{fact.number}단계 진행 중, {fact.label}"


@sentence.register
def _(fact: AfterStage) -> str:
    return f"{fact.number}단계 통과 후, {fact.passed}"


@sentence.register
def _(fact: InsideStage) -> str:
    at = f" ({place(fact.where)}에서 호출)" if fact.where is not None else ""
    return f"{ranks_text(fact.ranks):이} {fact.label} 단계에 있다{at}"
