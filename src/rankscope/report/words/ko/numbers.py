"""Korean words about numbers: values that stopped being finite, replicas that differ, ranks that others wait for."""

from __future__ import annotations

from rankscope.diagnosis.facts.numbers import (
    ArriveLast,
    BadEverywhere,
    BadKind,
    BadNowhereElse,
    BadTensors,
    CameFromSomewhere,
    DifferedAgain,
    FewerSteps,
    GotByReduction,
    GradientsSampled,
    HeldBad,
    HoldsOtherCopy,
    InputKept,
    KeptWaiting,
    LoadedAlone,
    MayBeWritten,
    ReplicasDiffer,
    RewroteAlone,
    StepOfFiniteGradients,
    SumDiffers,
    ValuesMet,
    WentBad,
    WorksLonger,
)
from rankscope.report.words.ko import doing, sentence
from rankscope.report.words.ko.advice import ADVICE
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.ko.phrases import after_steps, place, ranks_text

ADVICE.update(
    {
        "clean-the-sample": "그 샘플을 찾아 dataset에서 고치거나 뺀다: 배치로 묶기 전에 `torch.isfinite(x).all()`",
        "check-normalisation": "디코딩과 정규화를 살펴본다: 0인 편차로 나누기, 0의 log, 표의 빈칸",
        "look-for-log-of-zero": "0의 log나 0으로 나누기, 큰 값의 exp, 아무것도 없는 평균(모든 레이블이 무시됨), 전부 "
        "가려진 attention 행을 찾는다",
        "detect-anomaly": "torch.autograd.set_detect_anomaly(True) 아래에서 그 배치만 돌린다: 연산을 알려 준다",
        "skip-together": "그런 스텝은 모든 랭크가 함께 건너뛴다: 판단하기 전에 플래그를 all_reduce 한다",
        "add-epsilon": "sqrt, norm, log, 나눗셈의 도함수는 0에서 무한하다: 안쪽에 epsilon을 더한다",
        "stop-before-the-step": "clip_grad_norm_(..., error_if_nonfinite=True)는 스텝 전에 멈춘다; fp16에는 "
        "torch.amp.GradScaler가 필요하다",
        "lower-the-rate": "learning rate를 낮추거나 warm-up 하고, 그래디언트를 clip 한다",
        "steady-settings": "데이터가 깨끗하다면 설정이 원인이다: learning_rate, init_std, max_grad_norm(그래디언트 "
        "clip)을 줄이고 use_amp를 끈다(fp32); `rankscope train --preset stable`에 모두 들어 있다",
        "go-back-to-checkpoint": "그 이전의 체크포인트로 돌아간다: 유한하지 않은 파라미터는 다시 유한해지지 않는다",
        "initialise-everywhere": "모든 랭크에서 모든 가중치와 버퍼를 초기화하고, 체크포인트를 모든 랭크에서 "
        "읽는다(또는 broadcast 한다)",
        "look-for-empty-weights": "torch.empty나 채워지지 않은 meta 장치 모델을 찾는다",
        "skip-steps-together": "스텝을 건너뛸지 모든 랭크가 함께 정한다: 따르기 전에 플래그를 all_reduce 한다",
        "load-everywhere": "체크포인트 읽기와 파라미터 변경은 모든 랭크에서, 또는 DistributedDataParallel을 만들기 "
        "전에 한다",
        "look-for-other-writers": "optimizer 밖에서 바뀌는 파라미터와, 랭크마다 다른 난수를 찾는다",
        "repeat-on-each-device": "코드인가 하드웨어인가? 그 호스트에서 `rankscope check single --repeat 60`이 모든 "
        "장치에서 한 스텝을 되풀이한다: 같은 스텝에서 비트가 다르면 장치의 문제다",
        "more-loader-workers": "이 랭크의 로더에 워커를 더 준다(num_workers, prefetch_factor); 읽는 디스크를 살펴본다",
        "spread-long-samples": "긴 샘플을 랭크에 고르게 나눈다: 길이로 정렬하거나 토큰 수로 배치를 묶는다",
        "compare-processors": "이 랭크의 프로세서나 GPU를 다른 것과 비교한다: 클럭, 온도, 그 위의 다른 프로세스",
        "save-with-all-ranks": "모든 랭크로(torch.distributed.checkpoint) 또는 비동기로, 더 드물게 저장한다",
        "move-work-out-of-the-step": "로깅, 평가 등 한 랭크의 일을 스텝 밖이나 백그라운드 스레드로 옮긴다",
    }
)
_PHASES = {
    "data": "데이터 로딩",
    "forward/backward": "forward와 backward",
    "save": "저장",
    "other": "forward, backward, 로딩, 저장 밖의 코드",
}
_TENSORS: dict[BadKind, str] = {
    "input": "입력",
    "loss": "그래디언트",
    "gradient": "그래디언트",
    "parameter": "파라미터",
}
_KINDS: dict[BadKind, str] = {"input": "입력", "loss": "loss", "gradient": "그래디언트", "parameter": "파라미터"}


def _steps(count: int) -> Word:
    return after_steps(count, "optimizer 스텝")


def _held(kind: BadKind, value: str) -> str:
    noun = Word(_KINDS[kind])
    return f"{noun:이} {Word(value):이었다}" if kind == "loss" else f"{noun}에 {Word(value):이} 있었다"


@sentence.register
def _(fact: WentBad) -> str:
    if fact.what == "parameter":
        text = (
            f"{_steps(fact.step)} {ranks_text(fact.ranks)}의 파라미터가 유한하지 않았다 ({place(fact.where)}에서 관측)"
        )
    else:
        text = f"{_steps(fact.step)} {place(fact.where)}에서 {ranks_text(fact.ranks)}의 {_held(fact.what, fact.value)}"
    return f"{text}; 축약이 이를 {ranks_text(fact.spread_to):으로} 퍼뜨렸다" if fact.spread_to else text


@sentence.register
def _(fact: CameFromSomewhere) -> str:
    return (
        f"{_steps(fact.step)} {ranks_text(fact.ranks)}의 {_held(fact.what, fact.value)}. 어느 랭크에서 왔는지는 보이지 "
        "않았다"
    )


@sentence.register
def _(fact: HeldBad) -> str:
    return f"랭크 {fact.rank}: {doing(fact)}"


@doing.register
def _(fact: HeldBad) -> str:
    text = f"{_steps(fact.step)} {_held(fact.what, fact.value)}"
    return f"{text}: {fact.detail}" if fact.detail else text


@sentence.register
def _(fact: BadTensors) -> str:
    more = f" 외 {fact.count - len(fact.names)}개" if fact.count > len(fact.names) else ""
    return f"유한하지 않았던 {_TENSORS[fact.what]}: {', '.join(fact.names)}{more}"


@sentence.register
def _(fact: GotByReduction) -> str:
    return f"{ranks_text(fact.ranks):은} 축약을 통해 받았다: 그 전에 계산한 값은 유한했다"


@sentence.register
def _(fact: InputKept) -> str:
    return (
        f"그 스텝의 loss는 유한했다; 그 뒤 파라미터가 잘못되었을 때 랭크 {Word(fact.rank):은} 입력을 아직 갖고 있어 "
        "살펴보았다"
    )


@sentence.register
def _(_fact: BadEverywhere) -> str:
    return "모든 랭크가 유한한 파라미터에서 같은 스텝에 그렇게 되었다: 코드나 설정을 공유한다"


@sentence.register
def _(_fact: BadNowhereElse) -> str:
    return "그 스텝에 다른 랭크에는 없었다"


@sentence.register
def _(fact: ValuesMet) -> str:
    at = f"{place(fact.where)}의 " if fact.where is not None else ""
    return f"그 전에 랭크들의 값이 {at}{fact.op}에서 만났다"


@sentence.register
def _(_fact: StepOfFiniteGradients) -> str:
    return "optimizer는 유한한 그래디언트로는 기껏해야 무한대를 만든다: 앞 스텝의 그래디언트에 nan이 있었다"


@sentence.register
def _(_fact: GradientsSampled) -> str:
    return "그 스텝 전에는 그래디언트를 표본으로만 보았다"


@sentence.register
def _(_fact: MayBeWritten) -> str:
    return "프로그램 자신이 거기에 썼을 수 있다"


@sentence.register
def _(fact: ReplicasDiffer) -> str:
    who = (
        f"{ranks_text(fact.odd):은} 더 이상 다른 랭크들과 같은 파라미터를 갖고 있지 않다"
        if fact.odd
        else f"{ranks_text(fact.ranks):은} 더 이상 서로 같은 파라미터를 갖고 있지 않다"
    )
    alone = f"; 다른 랭크는 {place(fact.loaded)}에서 체크포인트를 읽지 않았다" if fact.loaded is not None else ""
    return f"{who} ({_steps(fact.step)} 처음 관측){alone}"


@sentence.register
def _(fact: SumDiffers) -> str:
    values = ", ".join(f"랭크 {rank}: {value:.6g}" for rank, value in fact.sums)
    return f"{_steps(fact.step)} {fact.name}의 합이 서로 다르다: {values}"


@sentence.register
def _(fact: DifferedAgain) -> str:
    return f"{fact.times}번의 비교에서 달랐고, 마지막은 {_steps(fact.last_step)}였다"


@sentence.register
def _(fact: FewerSteps) -> str:
    return f"{ranks_text(fact.ranks):은} 다른 랭크들보다 optimizer 스텝을 덜 했다"


@sentence.register
def _(fact: LoadedAlone) -> str:
    times = "" if fact.times == 1 else f" {fact.times}번"
    return f"랭크 {fact.rank}만 {place(fact.where)}에서 체크포인트를{times} 읽었다"


@sentence.register
def _(fact: RewroteAlone) -> str:
    did = f"학습률을 {fact.note.replace(' to ', '에서 ')}로 바꾸었다"
    if fact.what == "load_state_dict":
        did = f"{fact.note}.load_state_dict를 불렀다"
    who = f"{ranks_text(fact.ranks):이} {fact.step}스텝 뒤에 {place(fact.where)}에서 {did}"
    return f"{who}. {ranks_text(fact.others):은} 그러지 않았다"


@sentence.register
def _(fact: HoldsOtherCopy) -> str:
    return f"랭크 {fact.rank}의 모델 사본이 다른 랭크들의 것과 다르다"


@doing.register
def _(_fact: HoldsOtherCopy) -> str:
    return "모델 사본이 다른 랭크들의 것과 다르다"


@sentence.register
def _(fact: KeptWaiting) -> str:
    at = f" ({place(fact.where)})" if fact.where is not None else ""
    return (
        f"{ranks_text(fact.ranks):이} {ranks_text(fact.others):을} {fact.lost_s:.1f}초(시간의 {fact.share:.0%}) 동안 "
        f"기다리게 했다: 다른 랭크들의 {fact.factor:g}배를 일했고, 대부분 {Word(_PHASES[fact.phase]):이다}{at}"
    )


@sentence.register
def _(fact: ArriveLast) -> str:
    return f"{ranks_text(fact.others):이} 집합 통신에서 기다린다; {ranks_text(fact.ranks):이} 마지막에 도착한다"


@sentence.register
def _(fact: WorksLonger) -> str:
    return f"랭크 {fact.rank}: {doing(fact)}"


@doing.register
def _(fact: WorksLonger) -> str:
    return f"다른 랭크들의 {fact.factor:g}배를 일한다: {_PHASES[fact.phase]}"
