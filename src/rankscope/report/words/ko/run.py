"""Korean words for facts about a run as a whole."""

from __future__ import annotations

import signal

from rankscope.diagnosis.facts.run import (
    BeforeThat,
    CameBack,
    CommandFailed,
    EarlierAttempt,
    EndedWell,
    EvidenceElsewhere,
    FirstToFail,
    LauncherRaised,
    LookFailed,
    Meanwhile,
    NeverStarted,
    NobodyNamed,
    OnlyExitCodes,
    Overheard,
    ProbeFailed,
    SaidMeanwhile,
    SignalCameTo,
    StartingRanks,
    StoppedByElastic,
    StoppedBySignal,
    StoppedTwice,
    StoppedUnseen,
    UnusedLosses,
)
from rankscope.report.words.ko import headline, sentence
from rankscope.report.words.ko.advice import ADVICE
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.ko.phrases import ranks_text, with_victims

ADVICE.update(
    {
        "read-output": "실행 폴더에 있는 그 랭크의 출력을 살펴본다",
        "choose-port": "--master-port나 --rdzv-endpoint로 다른 포트를 고르거나, 포트를 쥔 쪽을 끝낸다",
        "check-endpoint": "--rdzv-endpoint나 --master-addr을 확인한다: 이름이 풀리는가, 응답하는가?",
        "read-launcher-message": "메시지를 본다. torch의 런처에서 온 것이다",
    }
)


@sentence.register
def _(fact: Overheard) -> str:
    return (
        f"{Word(fact.host):이} 말한다(확인되지 않음: 노드들이 키를 공유하지 않는다, RANKSCOPE_KEY 참고): "
        f"{fact.headline.rstrip('.')}"
    )


@sentence.register
def _(fact: EndedWell) -> str:
    return f"모든 랭크 {fact.ranks}개가 잘 끝났다" if fact.ranks != 1 else "하나뿐인 랭크가 잘 끝났다"


@sentence.register
def _(fact: Meanwhile) -> str:
    return with_victims(headline(fact.summary), fact.culprits, fact.victims, failed=fact.victims_failed)


@sentence.register
def _(fact: StoppedBySignal) -> str:
    return f"작업이 {Word(signal.Signals(fact.signal).name):으로} 멈췄다{_at_that_moment(fact.meanwhile)}"


@sentence.register
def _(fact: StoppedByElastic) -> str:
    return f"torch의 elastic agent가 랭크들을 멈췄다{_at_that_moment(fact.meanwhile)}"


def _at_that_moment(meanwhile: Meanwhile | None) -> str:
    return "" if meanwhile is None else f". 그 순간 {sentence(meanwhile)}"


@sentence.register
def _(_fact: StoppedTwice) -> str:
    return "마지막으로 살펴보기 전에 두 번째로 멈춰졌다"


@sentence.register
def _(fact: FirstToFail) -> str:
    how = f"코드 {Word(fact.code):으로}" if fact.code >= 0 else f"{Word(signal.Signals(-fact.code).name):으로}"
    return f"랭크 {Word(fact.rank):이} 먼저 {how} 끝났다"


@sentence.register
def _(_fact: StoppedUnseen) -> str:
    return "랭크들이 멈춰졌고, 그 전에 무엇을 했는지는 읽을 수 없었다"


@sentence.register
def _(_fact: OnlyExitCodes) -> str:
    return "증거를 읽을 수 없었다; 종료 코드만 안다"


@sentence.register
def _(fact: NeverStarted) -> str:
    return f"랭크들을 시작할 수 없었다: {fact.message}"


@sentence.register
def _(fact: LauncherRaised) -> str:
    return f"{fact.type}: {fact.message}"


@sentence.register
def _(fact: CommandFailed) -> str:
    return f"모든 랭크가 0으로 끝난 뒤 명령 자체가 코드 {Word(fact.code):으로} 끝났다"


@sentence.register
def _(_fact: StartingRanks) -> str:
    return "랭크들을 시작하는 중"


@sentence.register
def _(fact: EarlierAttempt) -> str:
    return f"시도 {Word(fact.attempt):은} 끝났다: {fact.headline}"


@sentence.register
def _(fact: BeforeThat) -> str:
    return f"그 전에, {fact.headline}"


@sentence.register
def _(fact: SaidMeanwhile) -> str:
    return fact.headline


@sentence.register
def _(fact: CameBack) -> str:
    return f"{fact.after_s:.0f}초 동안 멈춰 있던 작업이 다시 나아간다"


@sentence.register
def _(fact: SignalCameTo) -> str:
    return f"신호는 {fact.host}의 런처에 왔고, 다른 노드는 그 랭크 없이 계속할 수 없다"


@sentence.register
def _(fact: EvidenceElsewhere) -> str:
    return f"모든 노드의 증거는 {fact.host}에 있다"


@sentence.register
def _(_fact: NobodyNamed) -> str:
    return "수치가 잘못되었다; 어디서 시작되었는지 모든 노드에 물을 수는 없어서 아무도 지목하지 않는다"


@sentence.register
def _(fact: UnusedLosses) -> str:
    return (
        f"랭크 {Word(fact.rank):이} 유한하지 않은 loss로 backward를 {fact.times}번 불렀다; 그 결과를 적용한 "
        "optimizer는 없다"
    )


@sentence.register
def _(fact: ProbeFailed) -> str:
    where = f"{ranks_text(fact.ranks)}에서 " if fact.ranks else ""
    return f"{where}rankscope의 프로브가 실패했다. 프로그램은 실패하지 않았다: {fact.error}"


@sentence.register
def _(fact: LookFailed) -> str:
    return f"작업을 살펴보는 데 실패했다: {fact.error}"
