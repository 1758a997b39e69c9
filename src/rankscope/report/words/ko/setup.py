"""Korean words about the set-up of a job: ranks that were never started, groups, keys of the store, lost machines."""

from __future__ import annotations

from rankscope.diagnosis.facts.setup import (
    Answered,
    AskedForGroup,
    AwaitsKey,
    CutApart,
    DeclaredWorld,
    FailedSetUp,
    GroupsDiffer,
    GroupsTakeAll,
    ImportedTogether,
    KeyUnset,
    LastWord,
    LinkUp,
    LostNode,
    LostState,
    MayBeDown,
    NoAnswerFrom,
    NodeDoes,
    NodesLost,
    OtherVariable,
    RanksNeverStarted,
    SettersWait,
    SetUpVariables,
    WaitInNewGroup,
    WaitInSetUp,
)
from rankscope.report.words.ko import doing, headline, sentence
from rankscope.report.words.ko.advice import ADVICE
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.ko.phrases import place, ranks_text

ADVICE.update(
    {
        "same-variables": "모든 랭크에 같은 {name:을} 준다: 런처가 정하는 곳에서는 손으로 정하지 않는다",
        "import-one-at-a-time": "랭크들이 하나씩 import 하게 한다: --serialize-imports on",
        "world-by-environment": "world_size와 rank를 손으로 넘기지 않는다: init_process_group()이 WORLD_SIZE와 RANK를 "
        "읽는다",
        "launch-declared": "또는 랭크 {declared}개를 시작한다: --nproc-per-node 곱하기 --nnodes가 {declared:이} "
        "되어야 한다",
        "new-group-everywhere": "모든 랭크가 모든 그룹에 대해 같은 순서로 new_group을 부르고, 자기가 속한 것만 쓴다",
        "new-group-local": "또는 use_local_synchronization=True를 준다",
        "set-the-key": "누가 그 키를 정하는지 찾고, 양쪽이 같게 적었는지 확인한다; 다음 집합 통신 전에 정한다",
        "key-timeout": "기다림에 timeout을 주고, 어느 키가 없는지 오류에 적는다",
        "node-gone": "그 머신을 살펴본다: 누가 런처를 끝냈는가(스케줄러, 메모리 부족, 사람), 재시작되었는가?",
        "node-spare": "--max-restarts와 --nnodes MIN:MAX를 쓰면 그 노드 없이 작업이 계속된다",
        "node-frozen": "그 머신을 살펴본다: 작업이 거기서 중지되었는가(kill -CONT), 머신이 일시 정지되었거나 메모리가 "
        "없는가?",
        "node-unreachable": "그 머신과 네트워크를 살펴본다: 켜져 있는가, ping이 닿는가, 방화벽이나 스위치가 "
        "바뀌었는가?",
        "node-cut-off": "그 머신의 케이블, 스위치 포트, 네트워크 인터페이스 드라이버를 살펴본다",
        "nodes-apart": "{hosts}에서 rankscope가 무엇이라 하는지 본다; 그 사이의 네트워크를 살펴본다",
    }
)

_LOST: dict[LostState, str] = {
    "gone": "사라졌다: 런처가 죽었거나 머신이 재시작되었다",
    "frozen": "얼어붙었다: 머신은 응답하는데 런처는 응답하지 않는다",
    "unreachable": "닿지 않는다: 네트워크에서 끊겼거나 꺼져 있다",
    "cut-off": "끊겼다: 네트워크 링크가 내려가 있다",
}
_DOES: dict[LostState, str] = {
    "gone": "런처가 말없이 끝났다",
    "frozen": "런처가 멈춰 있다",
    "unreachable": "노드가 응답하지 않는다",
    "cut-off": "노드가 네트워크 링크를 잃었다",
}


@headline.register
def _(fact: RanksNeverStarted) -> str:
    at = place(fact.where) if fact.where is not None else "init_process_group"
    return (
        f"선언된 world {fact.declared} 중 {ranks_text(fact.ranks):이} 시작되지 않았다: 작업에는 랭크가 "
        f"{fact.launched}개 있고, 모두 {at}에서 기다린다"
    )


@sentence.register
def _(fact: RanksNeverStarted) -> str:
    return f"{ranks_text(fact.ranks):이} 시작되지 않았다"


@sentence.register
def _(fact: DeclaredWorld) -> str:
    return f"init_process_group은 world {Word(fact.declared):을} 받았는데, 시작된 랭크는 {fact.launched}개다"


@sentence.register
def _(fact: WaitInSetUp) -> str:
    return f"{ranks_text(fact.ranks):이} 설정 단계에서 기다린다; 더 올 랭크는 없다"


@headline.register
def _(fact: OtherVariable) -> str:
    return (
        f"{ranks_text(fact.ranks):은} {fact.name}={fact.value}에서 다른 랭크들을 찾는다; 나머지는 모두 "
        f"{Word(f'{fact.name}={fact.others}'):이다}"
    )


@sentence.register
def _(fact: OtherVariable) -> str:
    return f"{ranks_text(fact.ranks):은} {fact.name}={fact.value}, 나머지는 {Word(f'{fact.name}={fact.others}'):이다}"


@doing.register
def _(fact: OtherVariable) -> str:
    return f"{fact.name}={fact.value}에서 다른 랭크들을 찾는데, 그들은 {fact.others}에 있다"


@sentence.register
def _(fact: FailedSetUp) -> str:
    return f"랭크 {fact.rank}의 traceback: " + " > ".join(map(place, fact.frames))


@sentence.register
def _(fact: SetUpVariables) -> str:
    return f"랭크 {fact.rank}의 변수: " + " ".join(f"{name}={value}" for name, value in fact.variables)


@sentence.register
def _(fact: ImportedTogether) -> str:
    return f"{ranks_text(fact.ranks):이} 한 머신에서 같은 때에 라이브러리를 import 했다"


@sentence.register
def _(fact: AskedForGroup) -> str:
    return f"{ranks_text(fact.ranks):은} {Word(f'[{fact.members}]'):을} 요청했다"


@doing.register
def _(fact: AskedForGroup) -> str:
    return f"{fact.number}번째 프로세스 그룹으로 {Word(f'[{fact.members}]'):을} 요청했다"


@sentence.register
def _(fact: GroupsDiffer) -> str:
    asked = "; ".join(map(sentence, fact.asked))
    return f"랭크들이 서로 다른 프로세스 그룹을 만든다: {fact.number}번째로 {asked}"


@sentence.register
def _(_fact: GroupsTakeAll) -> str:
    return "모든 랭크가 자기가 속하지 않은 그룹까지 모두, 같은 순서로 new_group을 불러야 한다"


@sentence.register
def _(fact: WaitInNewGroup) -> str:
    return f"{ranks_text(fact.ranks):이} new_group에서 기다린다"


def _key(key: str) -> str:
    return f"키 {key!r}" if key else "키"


@headline.register
def _(fact: AwaitsKey) -> str:
    return (
        f"랭크 {Word(fact.rank):이} {place(fact.where)}에서 작업 store의 {Word(_key(fact.key)):을} 기다리는데, 아무도 "
        "정하지 않는다"
    )


@sentence.register
def _(fact: AwaitsKey) -> str:
    return f"{place(fact.where)}에서 작업 store의 {Word(_key(fact.key)):을} 기다린다"


@sentence.register
def _(fact: KeyUnset) -> str:
    return f"어떤 랭크도 정하지 않은 store의 {Word(_key(fact.key)):을} 기다린다"


@sentence.register
def _(_fact: SettersWait) -> str:
    return "그것을 정할 수 있는 모든 랭크가 이 랭크를 기다린다"


@sentence.register
def _(fact: LostNode) -> str:
    if fact.state == "gone":
        launcher = "런처" if fact.pid is None else f"런처(pid {fact.pid})"
        return f"{Word(fact.host):이} {launcher}로의 연결을 거부한다: 프로세스가 끝났다"
    if fact.state == "frozen":
        return f"{Word(fact.host):은} 런처(pid {fact.pid})로의 연결을 받지만, 런처가 응답하지 않는다"
    if fact.state == "unreachable":
        return f"{fact.seen_from}에서 {fact.host}로의 연결에 아무 응답이 없다"
    return f"다른 노드 쪽으로 난 {fact.host}의 인터페이스에 링크가 없다"


@sentence.register
def _(fact: NodesLost) -> str:
    names = ", ".join(f"{node.host}({ranks_text(node.ranks)})" if node.ranks else node.host for node in fact.nodes)
    return f"노드 {Word(names):이} {_LOST[fact.state]}"


@sentence.register
def _(fact: NodeDoes) -> str:
    return _DOES[fact.state]


@sentence.register
def _(fact: LastWord) -> str:
    return f"마지막 소식은 {fact.silent_s:.1f}초 전에 왔다; 작별 인사는 없었다"


@sentence.register
def _(fact: Answered) -> str:
    more = f" 외 {len(fact.hosts) - 6}개" if len(fact.hosts) > 6 else ""
    return f"{Word(', '.join(fact.hosts[:6]) + more):이} 응답했다"


@sentence.register
def _(_fact: MayBeDown) -> str:
    return "머신이 꺼져 있을 수 있다. 여기서는 똑같아 보인다"


@sentence.register
def _(fact: CutApart) -> str:
    hosts = ", ".join(fact.hosts)
    return (
        f"{Word(fact.here):과} {Word(hosts):이} 서로 닿지 않는다; 그중 어느 쪽이 끊겼는지는 {fact.here}에서 알 수 없다"
    )


@sentence.register
def _(fact: NoAnswerFrom) -> str:
    return f"{fact.here}에서 {', '.join(fact.hosts)}로의 연결에 아무 응답이 없다"


@sentence.register
def _(_fact: LinkUp) -> str:
    return "이 머신의 링크는 올라와 있다"
