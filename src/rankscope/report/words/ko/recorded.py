"""Korean words about dumps of torch's flight recorder, and about stacks alone."""

from __future__ import annotations

from rankscope.diagnosis.facts.recorded import (
    AwaitedUndumped,
    DidNotEnter,
    EitherSide,
    EnteredNotFinished,
    LastRecorded,
    NobodyMoved,
    NoDump,
    OnlyTheyCall,
    ParkedApart,
    ParkedIn,
    RecordedCall,
    TheFewer,
    Unconditional,
    Undecided,
    WaitsForUndumped,
    WaitsInRecorded,
)
from rankscope.diagnosis.verdict import Where
from rankscope.report.words.ko import doing, headline, sentence
from rankscope.report.words.ko.advice import ADVICE
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.ko.phrases import place, ranks_text

ADVICE.update(
    {
        "after-last-collective": "그 랭크가 마지막 집합 통신 뒤에 무엇을 하는지 본다: 호출을 건너뛰는 분기, 잡힌 예외, "
        "돌아오지 않는 호출",
        "run-to-see-outside": "`rankscope run`으로 작업을 돌린다: 집합 통신 밖의 랭크가 어디에 서 있는지도 본다",
        "dump-its-stack": "그 랭크가 어디에 서 있는지 본다: 그 호스트에서 `py-spy dump --pid PID`, 그 덤프도 rankscope "
        "diagnose에 준다",
        "give-its-log": "그 랭크의 로그 끝을 읽는다: 예외, 시그널, 메모리 킬러; 로그를 rankscope diagnose에 준다",
        "dump-again": "나중에 그 랭크의 덤프를 다시 뜬다",
        "out-of-the-branch": "호출을 분기 밖으로 옮기거나 모든 랭크가 그 분기를 타게 한다",
        "no-collectives-on-one-rank": "한 랭크만 일하는 곳에서는 집합 통신을 쓰지 않는다: DDP 래퍼가 아니라 "
        "model.module",
        "others-past-this-line": "다른 랭크들의 스택이 이 줄을 지났는지 본다: `py-spy dump --pid PID`",
        "look-at-rank": "랭크 {ranks:을} 살펴본다: 프로세스가 끝났는가, 로그가 이어지는가?",
        "let-every-rank-dump": "모든 랭크가 덤프를 쓰게 한다: 환경에 TORCH_NCCL_DUMP_ON_TIMEOUT=1과 "
        "TORCH_FR_BUFFER_SIZE=2000",
        "find-dump-or-log": "랭크 {ranks}의 덤프나 로그를 찾아 다른 것들과 함께 rankscope diagnose에 준다",
        "run-for-sequence": "`rankscope run`으로 작업을 시작한다: 집합 통신의 순서가 랭크들이 갈라진 곳을 보여 준다",
    }
)


def _site(where: Where | None) -> Word:
    return place(where) if where is not None else Word("덤프가 알려 주지 않는 줄")


def call_text(call: RecordedCall) -> Word:
    """`기본 그룹의 all_reduce 6`."""
    group = "기본 그룹" if call.group in ("0", "") else f"그룹 {call.group}"
    return Word(f"{group}의 {call.op}{f' {call.seq}' if call.seq else ''}")


def _whole(call: RecordedCall) -> Word:
    return Word(f"{_site(call.where)}에서 {call_text(call)}")


def _last(call: RecordedCall | None) -> str:
    if call is None:
        return "그 기록에는 집합 통신이 없다"
    return f"마지막으로 기록된 호출은 {_site(call.where)}의 {call_text(call):이다}"


@sentence.register
def _(fact: RecordedCall) -> str:
    return _whole(fact)


@sentence.register
def _(fact: EnteredNotFinished) -> str:
    return f"{ranks_text(fact.ranks):이} {_whole(fact.call)}에 들어가 끝내지 못했다"


@sentence.register
def _(fact: DidNotEnter) -> str:
    return (
        f"{ranks_text(fact.ranks):은} 다른 랭크들이 {_site(fact.call.where)}에서 이른 {call_text(fact.call)}에 "
        f"들어가지 않았다; {_last(fact.last)}"
    )


@doing.register
def _(fact: DidNotEnter) -> str:
    return f"{call_text(fact.call)}에 들어가지 않았다; {_last(fact.last)}"


@sentence.register
def _(fact: LastRecorded) -> str:
    return f"랭크 {Word(fact.rank):은} 그러지 않았다: {_last(fact.last)}"


@sentence.register
def _(_fact: TheFewer) -> str:
    return "이쪽이 적은 쪽이다: 다른 랭크들은 그 호출에 이르렀다"


@sentence.register
def _(_fact: Unconditional) -> str:
    return "그 호출은 어떤 조건에도 매여 있지 않다"


@sentence.register
def _(fact: OnlyTheyCall) -> str:
    return f"{ranks_text(fact.ranks):이} {_whole(fact.call):을} 불렀다. 그룹의 다른 랭크는 거기서 부르지 않는다"


@sentence.register
def _(fact: WaitsInRecorded) -> str:
    return f"{call_text(fact.call)}에서 기다린다"


@sentence.register
def _(fact: Undecided) -> str:
    blind = f"; {ranks_text(fact.unseen)}의 덤프는 없다" if fact.unseen else ""
    return (
        f"{ranks_text(fact.waiting):이} {_whole(fact.call)}에서 기다리고, {ranks_text(fact.absent):은} 들어가지 "
        f"않았다{blind}"
    )


@sentence.register
def _(_fact: EitherSide) -> str:
    return "호출이 하나 더 있는 것인지 다른 랭크들이 오지 않는 것인지 덤프로는 알 수 없다"


@sentence.register
def _(fact: WaitsForUndumped) -> str:
    absent = ", 그 밖에 빠진 랭크는 없다" if fact.only else ", 그래서 누가 빠졌는지 알 수 없다"
    return (
        f"{ranks_text(fact.waiting):이} {_whole(fact.call)}에서 기다린다; {ranks_text(fact.undumped)}의 덤프는 "
        f"없다{absent}"
    )


@sentence.register
def _(fact: NoDump) -> str:
    only = ": 그룹의 다른 모든 랭크는 그 호출에 들어갔다" if fact.only else ""
    return f"{ranks_text(fact.ranks)}의 덤프가 주어지지 않았다{only}"


@sentence.register
def _(fact: AwaitedUndumped) -> str:
    return f"덤프가 없다; {call_text(fact.call):이} 이를 기다린다"


@sentence.register
def _(fact: ParkedIn) -> str:
    if not fact.ranks:
        return fact.op or "torch의 연산"
    return f"{ranks_text(fact.ranks):이} {place(fact.where)}의 {fact.op or 'torch의 연산'}에서 기다린다"


@doing.register
def _(fact: ParkedIn) -> str:
    return f"{fact.op or 'torch의 연산'}에서 기다린다"


@headline.register
def _(fact: ParkedApart) -> str:
    return "랭크들이 서로 다른 집합 통신에서 기다린다: " + "; ".join(map(sentence, fact.sides))


@sentence.register
def _(fact: ParkedApart) -> str:
    return "; ".join(map(sentence, fact.sides))


@sentence.register
def _(_fact: NobodyMoved) -> str:
    return "지켜보는 동안 그중 아무도 움직이지 않았다"
