"""Korean words for facts about calls."""

from __future__ import annotations

import os

from rankscope.diagnosis.facts.calls import (
    Alone,
    Batches,
    Called,
    Circle,
    Condition,
    EndedAfter,
    ExpectsMore,
    Extra,
    FewerMessages,
    FirstDifference,
    GroupOrder,
    LeftLoop,
    MessageMissing,
    Mismatch,
    NewWay,
    NobodyMakes,
    NobodyStandsOut,
    NoDifferenceSeen,
    NoMeeting,
    NotCome,
    Now,
    OtherPeers,
    OtherShares,
    OutOfData,
    PairedAnyway,
    Passes,
    Perhaps,
    Shares,
    Sides,
    Skipped,
    UnevenPasses,
    WaitsIn,
    WentOn,
    WrongPair,
    WrongPeer,
)
from rankscope.diagnosis.verdict import Where
from rankscope.report.words.ko import doing, headline, sentence
from rankscope.report.words.ko.advice import ADVICE
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.ko.phrases import NO_LINE, after_steps, place, ranks_text

ADVICE.update(
    {
        "same-collectives": "모든 랭크가 같은 집합 통신을 같은 순서로 부르게 한다: 호출을 분기 밖으로 옮기거나, 모든 "
        "랭크가 그 분기를 타게 한다",
        "one-rank-works": "한 랭크만 하는 일(평가, 저장) 안에서는 집합 통신을 쓰지 않는다: DDP 래퍼 대신 "
        "model.module을 쓰고, barrier는 분기 뒤에 둔다",
        "decide-together": "모든 랭크가 공유하는 값으로 판단한다: 분기 전에 플래그를 all_reduce 한다",
        "checkpoint-before": "이 지점 이전의 체크포인트로 돌아간다: 그 뒤에 계산한 값은 틀렸다",
        "same-call": "이 지점에서 모든 랭크가 같은 연산을 같은 크기, dtype, root로 부르게 한다",
        "same-shares": "모든 랭크가 가진 하나의 계획에서 몫을 만든다: 먼저 개수를 주고받는다(입력 split을 "
        "all_to_all_single 하면 출력 split이 된다)",
        "pad-first": "랭크마다 데이터가 다르면 먼저 크기를 모으거나 패딩한다",
        "one-group-order": "모든 랭크에서 프로세스 그룹을 정해진 한 순서로 쓴다(랭크, dict, 도착 순이 아니라 그룹 순)",
        "first-group-first": "또는 다른 그룹의 집합 통신에 들어가기 전에 첫 번째가 끝나기를 기다린다",
        "same-batches": "모든 랭크에 같은 수의 배치를 준다: drop_last=True, DistributedSampler, 또는 고정된 스텝 수",
        "join": "또는 루프를 torch.distributed.algorithms.join.Join으로 감싼다",
        "same-rounds": "모든 랭크가 같은 회차에 통신하게 한다: 같은 수의 누적 스텝, 같은 `no_sync()`",
        "shared-decision": "한 랭크가 본 것이 아니라 모든 랭크가 공유하는 값(스텝, 플래그의 all_reduce)으로 판단한다",
        "same-messages": "양쪽이 메시지 수를 맞춘다: 개수를 먼저 보내거나 마지막 배치를 패딩한다",
        "pair-messages": "양쪽이 메시지 수를 맞춘다: 모든 랭크에서 isend마다 irecv가 있어야 한다",
        "one-sends": "짝마다 한쪽은 보내고 다른 쪽은 받게 하거나 batch_isend_irecv를 쓴다",
        "check-peers": "모든 send는 받을 랭크를, 모든 recv는 보낼 랭크를 가리켜야 한다: src와 dst를 확인한다",
        "same-tag": "두 호출에 같은 tag와 같은 그룹을 준다",
        "shared-tag": "tag는 양쪽이 아는 값(스텝, 마이크로배치 번호)에서 만든다",
        "compare-stacks": "증거에 있는 랭크들의 스택을 비교한다",
    }
)

_PERHAPS = {
    "calls-differ": "이 지점의 호출이 서로 다르다",
    "skipped-before": "한쪽이 앞에서 호출을 건너뛰었을 수 있다",
    "one-call-missing": "다른 쪽에 호출 하나가 빠졌을 수 있다",
    "left-loop-otherwise": "다른 이유로 루프를 나갔을 수 있다",
    "loop-left-early": "루프를 끝나기 전에 나갔을 수 있다",
    "other-side-expects-more": "다른 쪽이 너무 많이 기대할 수 있다",
    "fewer-batches": "한쪽이 보낼 배치가 더 적었을 수 있다",
    "peer-left-out-message": "상대로 지정된 랭크가 메시지를 빠뜨렸을 수 있다",
    "message-behind": "한쪽이 메시지 하나만큼 뒤처졌을 수 있다",
    "large-message": "큰 메시지가 아직 전송 중일 수 있다",
    "wrong-peer-or-tag": "메시지가 잘못된 상대나 tag를 가리킬 수 있다",
    "left-too-early": "다른 랭크가 아직 필요로 하는데 끝났다",
    "passed-once": "조건 때문에 호출을 한 번 건너뛰었을 수 있다",
}


def _at(where: Where | None) -> Word:
    return place(where) if where is not None else NO_LINE


def _group(group: str) -> Word:
    return Word("기본 그룹" if group in ("0", "") else f"그룹 {group}")


def _collective(fact: WaitsIn) -> Word:
    if fact.several:
        return Word("여러 메시지 중 하나를 기다리는 대기")
    if fact.peer >= 0:
        return Word(f"랭크 {Word(fact.peer):과}의 {fact.op}")
    number = f" {fact.number}" if fact.number else ""
    group = f"{_group(fact.group)}의 " if fact.group else ""
    return Word(f"{group}{fact.op}{number}")


def _call(fact: Called) -> Word:
    """`share (train.py:9)에서 원소 5개의 broadcast (3 스텝 후)`."""
    size = f"원소 {fact.numel}개" if fact.numel > 0 else ""
    if fact.shape:
        size += f" {' x '.join(map(str, fact.shape))}"
    kind = fact.dtype or ""
    root = f"root {fact.root}" if fact.root >= 0 else ""
    through = f"{fact.through} 경유" if fact.through else ""
    step = f"{after_steps(fact.step)}" if fact.step > 0 else ""
    about = ", ".join(filter(None, (fact.reduces, size, kind, root, through, step)))
    caller = f"({place(fact.caller)}에서 호출) " if fact.caller is not None else ""
    return Word(f"{_at(fact.where)}에서 {caller}{fact.op}{f' ({about})' if about else ''}")


@sentence.register
def _(fact: Called) -> str:
    return f"{ranks_text(fact.ranks):이} {_call(fact):을} 불렀다"


@doing.register
def _(fact: Called) -> str:
    return f"{_call(fact):을} 불렀다"


@sentence.register
def _(fact: NotCome) -> str:
    return f"{ranks_text(fact.ranks):은} 이 호출을 하지 않았다"


@sentence.register
def _(fact: FirstDifference) -> str:
    text = f"{_group(fact.group)}의 {fact.place}번째 집합 통신에서 랭크들이 처음으로 갈라진다"
    return f"{text}: {_at(fact.where)}의 {fact.op} {fact.round}회차" if fact.round else text


@sentence.register
def _(fact: Extra) -> str:
    return f"{sentence(fact.call)}; 그룹의 다른 랭크는 거기서 이 호출을 하지 않는다"


@headline.register
def _(fact: Extra) -> str:
    return f"{sentence(fact.call)}. 그룹의 다른 랭크는 거기서 하지 않는 호출이다"


@sentence.register
def _(fact: Skipped) -> str:
    more = f" 외 호출 {fact.count - 1}개" if fact.count > 1 else ""
    times = f" {fact.round}회차에" if fact.round else ""
    skipped = Word(f"{_at(fact.where)}의 {fact.op}{more}")
    return f"{ranks_text(fact.ranks):이}{times} {skipped:을} 건너뛰고 계속 나아갔다"


@doing.register
def _(fact: Skipped) -> str:
    return f"{Word(f'{_at(fact.where)}의 {fact.op}'):을} 건너뛰었다"


@sentence.register
def _(fact: Sides) -> str:
    return "; ".join(map(sentence, fact.calls))


@headline.register
def _(fact: Sides) -> str:
    return f"랭크들이 {len(fact.calls)}갈래로 나뉘었고 어느 쪽이 틀렸는지는 드러나지 않는다: {sentence(fact)}"


@sentence.register
def _(fact: NobodyStandsOut) -> str:
    return f"{ranks_text(fact.ranks):이} 서로 다르게 움직였고, 어느 쪽이 틀렸는지 보여 주는 것이 없다"


@sentence.register
def _(fact: Mismatch) -> str:
    return f"{'; '.join(map(sentence, fact.calls))}: 서로 맞지 않는 호출이다"


@sentence.register
def _(fact: WrongPair) -> str:
    return f"{'; '.join(map(sentence, fact.calls))}: 짝이 아닌 호출들이 서로 짝지어졌다"


@sentence.register
def _(fact: PairedAnyway) -> str:
    more = f" ({fact.since}개 집합 통신 전)" if fact.since else ""
    later = f"; 나중에는 이것들을 짝지었다: {'; '.join(map(sentence, fact.later))}" if fact.later else ""
    return f"그런데도 짝지어져 작업이 계속되었다{more}: 그때부터 수치가 틀렸다{later}"


@sentence.register
def _(fact: Shares) -> str:
    more = f"; 이 호출의 다른 몫 {fact.more}개도 맞지 않는다" if fact.more else ""
    return f"{_share(fact)}: 랭크 {Word(fact.receiver):은} {fact.expected}개를 기대한다{more}"


@doing.register
def _(fact: Shares) -> str:
    return _share(fact)


def _share(fact: Shares) -> str:
    return (
        f"랭크 {Word(fact.sender):이} {_at(fact.where)}의 {fact.op}에서 랭크 {fact.receiver}에 원소 {fact.sent}개를 "
        "보낸다"
    )


@sentence.register
def _(fact: OtherShares) -> str:
    return (
        f"랭크 {Word(fact.rank):은} 앞선 {fact.times}번의 호출에서 모두 랭크 {Word(fact.partner):과} 다른 몫을 "
        f"주고받았다; 랭크 {Word(fact.partner):은} 늘 하던 대로 한다"
    )


@sentence.register
def _(fact: Condition) -> str:
    file = os.path.basename(fact.where.file)
    here = f"`{_condition(fact)}` ({file}:{fact.where.line})"
    who = ranks_text(fact.ranks)
    target = _at(fact.target) if fact.target is not None else Word("그 호출")
    if fact.effect == "leads-to":
        return f"{who}만 이 분기를 탔다: {here}"
    if fact.effect == "keeps-from":
        return f"{here} 때문에 {who:이} {target}에 이르지 못한다"
    return f"{here} 때문에 {target:을} 건너뛴다"


def _condition(fact: Condition) -> str:
    return f"{fact.code}의 else" if fact.form == "else" else fact.code


@sentence.register
def _(fact: Alone) -> str:
    return f"그룹의 나머지 랭크 {fact.others}개는 다른 쪽으로 갔다"


@sentence.register
def _(fact: NewWay) -> str:
    return f"{ranks_text(fact.ranks):은} 이 길을 간 적이 없었다; 다른 길은 {fact.times}번 갔다"


@sentence.register
def _(fact: WentOn) -> str:
    if fact.what == "changed":
        return "그 뒤로는 순서가 다시 일치한다: 이 호출 하나만 다르다"
    more = "더 많다" if fact.what == "extra" else "더 적다"
    return f"그 뒤로는 순서가 다시 일치하며, {ranks_text(fact.ranks)}에서 호출이 {fact.count}개 {more}"


@sentence.register
def _(fact: WaitsIn) -> str:
    at = f"{place(fact.where)}의 " if fact.where is not None else ""
    return f"{ranks_text(fact.ranks):이} {at}{_collective(fact)}에서 기다린다"


@doing.register
def _(fact: WaitsIn) -> str:
    return f"{_collective(fact)}에서 기다린다"


@sentence.register
def _(fact: Now) -> str:
    return "지금 " + "; ".join(f"{ranks_text(wait.ranks):은} {_collective(wait)}에 있다" for wait in fact.waits)


@sentence.register
def _(_fact: GroupOrder) -> str:
    return "저마다 다른 그룹에서 자기를 기다리는 랭크를 기다린다: 아무도 나아갈 수 없다"


@headline.register
def _(fact: GroupOrder) -> str:
    parts = "; ".join(map(sentence, fact.waits))
    if not fact.told_apart:
        return f"{ranks_text(fact.ranks):이} 프로세스 그룹 {fact.groups}개에서 서로를 기다린다: {parts}"
    return (
        f"{ranks_text(fact.ranks):이} 프로세스 그룹 {fact.groups}개의 집합 통신에, 기다리는 상대 랭크들과 다른 순서로 "
        f"들어갔다: {parts}"
    )


@sentence.register
def _(_fact: Circle) -> str:
    return "이 고리의 어떤 랭크도 다른 랭크보다 먼저 나아갈 수 없다"


@headline.register
def _(fact: Circle) -> str:
    return f"{ranks_text(fact.ranks):이} 저마다 다음 랭크를 기다리는 순서로 보내고 받는다"


@sentence.register
def _(fact: Batches) -> str:
    end = "; 그 뒤 로더가 끝났다" if fact.exhausted else ""
    return f"랭크 {Word(fact.rank):이} 로더에서 배치 {fact.taken}개를 꺼냈다{end}"


@sentence.register
def _(fact: LeftLoop) -> str:
    loop = f"{os.path.basename(fact.loop.file)}:{fact.loop.line}"
    return f"{ranks_text(fact.ranks):이} {loop}의 루프를 나갔고, 나머지는 아직 그 안에 있다"


@sentence.register
def _(fact: OutOfData) -> str:
    return (
        f"{ranks_text(fact.ranks):이} {ranks_text(fact.others)}보다 먼저 데이터가 떨어져 {_at(fact.where):으로} "
        "나아갔다"
    )


@doing.register
def _(fact: OutOfData) -> str:
    return f"{ranks_text(fact.others)}보다 먼저 데이터가 떨어졌다"


@sentence.register
def _(fact: Passes) -> str:
    return f"랭크 {Word(fact.rank):이} 그곳을 {fact.made}번 지났고, 그중 {fact.communicating}번은 집합 통신을 했다"


@sentence.register
def _(fact: UnevenPasses) -> str:
    text = f"{ranks_text(fact.ranks):이} {_at(fact.where):을} 지나며 같은 회차에 통신하지 않는다"
    if not fact.number:
        return text
    return (
        f"{text}: {fact.number}번째에 {ranks_text(fact.reducing):은} 축약하고 {ranks_text(fact.silent):은} 하지 않는다"
    )


@sentence.register
def _(fact: FewerMessages) -> str:
    rank = f"랭크 {Word(fact.rank):이}"
    if fact.peer < 0 and fact.made > fact.usual:
        return f"{rank} {_at(fact.where)}에서 메시지 {fact.made}개를 시작했다. 전에는 늘 {fact.usual}개였다"
    if fact.peer < 0:
        return f"{rank} {_at(fact.where)}에서 평소 메시지 {fact.usual}개 중 {fact.made}개만 시작했다"
    return f"{rank} 랭크 {Word(fact.peer):과} {Word(fact.op):을} {fact.made}번 했다. 전에는 매번 {fact.usual}번이었다"


@headline.register
def _(fact: FewerMessages) -> str:
    text = sentence(fact)
    return text if fact.peer < 0 or fact.where is None else f"{text}; 그리고 {place(fact.where):으로} 나아갔다"


@doing.register
def _(fact: FewerMessages) -> str:
    if fact.made > fact.usual:
        return f"메시지를 {fact.usual}개가 아니라 {fact.made}개 만들었다"
    return f"메시지 {fact.usual}개 중 {fact.made}개만 만들고 나아갔다"


@sentence.register
def _(fact: OtherPeers) -> str:
    return f"앞서 {fact.times}번 모두, 랭크 {Word(fact.rank):은} 이 메시지를 {_partners(fact.gone)} 주고받았다"


@headline.register
def _(fact: OtherPeers) -> str:
    return (
        f"랭크 {Word(fact.rank):이} {_at(fact.where)}에서 메시지를 {_instead(fact.gone)} {_partners(fact.new)} "
        f"주고받는다: 앞서 {fact.times}번은 모두 앞의 쪽이었다"
    )


@doing.register
def _(fact: OtherPeers) -> str:
    return f"메시지를 {_instead(fact.gone)} {_partners(fact.new)} 주고받는다"


def _partners(ranks: tuple[int, ...]) -> str:
    return f"{ranks_text(ranks):과}" if ranks else "평소만큼"


def _instead(ranks: tuple[int, ...]) -> str:
    return f"{ranks_text(ranks):이} 아니라" if ranks else "평소의 횟수가 아니라"


@sentence.register
def _(fact: MessageMissing) -> str:
    return f"{ranks_text(fact.gone.ranks):은} {_at(fact.gone.where)}의 {Word(fact.gone.op):으로} 나아갔다"


@headline.register
def _(fact: MessageMissing) -> str:
    return f"{sentence(fact.wait)}; {sentence(fact)}: 둘 사이의 메시지 수가 맞지 않는다"


@sentence.register
def _(fact: WrongPeer) -> str:
    return f"앞서 {fact.times}번 모두, {ranks_text(fact.wait.ranks):은} 이를 랭크 {Word(fact.usual):과} 했다"


@headline.register
def _(fact: WrongPeer) -> str:
    return (
        f"{ranks_text(fact.wait.ranks):은} {_collective(fact.wait)}에 있고 랭크 {Word(fact.usual):이} 이를 기다린다: "
        f"{_at(fact.wait.where)}의 {Word(fact.wait.op):이} 잘못된 상대를 가리킨다"
    )


@sentence.register
def _(fact: NoMeeting) -> str:
    return f"recv와 만난 send는 메시지가 도착하면 돌아온다: {_apart(fact)}"


@headline.register
def _(fact: NoMeeting) -> str:
    return f"{sentence(fact.send)}; {sentence(fact.receive)}: 이 둘은 만나지 않는다. {_apart(fact)}"


def _apart(fact: NoMeeting) -> str:
    return "프로세스 그룹이 서로 다르다" if fact.groups_differ else "tag가 서로 다를 수 있다"


@sentence.register
def _(_fact: NobodyMakes) -> str:
    return "메시지를 보낼 수 있는 모든 랭크가 스스로 기다리고 있다"


@headline.register
def _(fact: NobodyMakes) -> str:
    return f"{sentence(fact.wait)}; 그 짝이 되는 호출을 하는 랭크가 없다"


@sentence.register
def _(fact: NoDifferenceSeen) -> str:
    return f"{ranks_text(fact.ranks):이} 서로를 기다리며 나아가지 못한다; 어디서 갈라졌는지는 기록되지 않았다"


@sentence.register
def _(fact: EndedAfter) -> str:
    return f"랭크 {Word(fact.rank):은} 그 뒤 코드 {Word(fact.code):으로} 끝났다; 런처가 멈춘 것이 아니다"


@sentence.register
def _(fact: Perhaps) -> str:
    return sentence(fact.condition) if fact.condition is not None else _PERHAPS[fact.reason]


@sentence.register
def _(fact: ExpectsMore) -> str:
    return (
        f"{ranks_text(fact.agree):은} 이 스텝에서 메시지 {fact.messages}개를 주고받고 넘어갔다. 그 전에는 매 스텝 "
        f"{ranks_text((fact.rank,))}도 같은 수를 주고받았는데, 지금은 혼자 하나를 더 기다린다"
    )
