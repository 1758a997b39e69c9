"""Korean words for what was seen of a job in which nothing was found wrong."""

from __future__ import annotations

from rankscope.diagnosis.facts.nothing_found import (
    AllWell,
    CollectorNote,
    CouldNotRead,
    EndedMeanwhile,
    EndedWithZero,
    InUnfinished,
    JudgedBefore,
    LastLinesDiffer,
    LauncherAlone,
    LoggedSteps,
    LogsEnd,
    Looked,
    MayStand,
    NoEndTold,
    NoLogOf,
    NoRank,
    NoRankFound,
    NoRankNamed,
    NoRankVariable,
    NothingToRead,
    NotUsed,
    OneLook,
    Phase,
    RunsOn,
    SaidDone,
    SeenToMove,
    StoodStill,
)
from rankscope.report.words.ko import headline, sentence
from rankscope.report.words.ko.advice import ADVICE
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.ko.phrases import place, ranks_text, span

ADVICE.update(
    {
        "read-its-verdict": "실행 폴더의 verdict.json이나 report.html을 읽는다. 실행이 끝날 때 쓰인 것이다",
        "stacks-twice": "몇 초 간격으로 스택을 두 번 떠서 둘 다 준다: 한 번 봐서는 느린 것과 멈춘 것을 구별할 수 없다",
        "give-logs": "모든 랭크의 로그도 rankscope diagnose에 준다: 작업이 어떻게 끝났는지는 마지막 줄들에 있다",
        "give-rank-logs": "줄마다 랭크가 적힌 로그, torch의 덤프, py-spy의 스택을 준다: `rankscope diagnose --help`가 "
        "읽을 수 있는 것을 나열한다",
        "what-diagnose-reads": "실행 폴더, 랭크들의 로그, torch의 덤프, py-spy의 스택을 준다: `rankscope diagnose "
        "--help`가 읽을 수 있는 것을 나열한다",
        "attach-as-its-user": "작업의 사용자나 root로, 그 컨테이너 안에서 attach 한다",
        "allow-ptrace": "스택을 읽을 수 있게 한다: `sysctl kernel.yama.ptrace_scope=0`, 컨테이너에는 --cap-add "
        "SYS_PTRACE; py-spy가 설치되어 있어야 한다",
        "give-ranks-by-pid": "랭크들이나 그 런처를 --pid로 준다: `pgrep -af python`이 프로세스를 나열한다",
        "try-again-soon": "랭크들이 torch를 불러온 몇 초 뒤에 다시 해 본다",
        "exit-code-of-launcher": "런처가 하는 말을 본다: 종료 코드를 안다",
    }
)

_IN_PHASE: dict[Phase, str] = {
    "init": "프로세스 그룹을 설정하는 중에",
    "barrier": "barrier에서",
    "forward": "forward나 backward에서",
    "batch": "첫 배치에서",
    "save": "저장하는 중에",
    "evaluate": "평가 중에",
    "model": "모델을 만드는 중에",
    "data": "데이터를 준비하거나 읽는 중에",
    "logger": "로거에서",
    "step": "스텝 사이에서",
    "stage": "시작하고 나오지 않은 단계에서",
    "unknown": "",
}
_MAY_STAND: dict[str, str] = {
    "collective-skipped": "어떤 랭크가 다른 랭크들이 있는 집합 통신에 들어오지 않을 수 있다",
    "slow-rank": "어떤 랭크가 말없이 아직 일하고 있을 수 있다",
    "gpu-stuck": "커널이나 GPU가 끝내지 못할 수 있다",
    "killed": "프로세스들이 사라졌을 수 있다: 메모리 킬러나 스케줄러에 의한 것처럼 말없이 죽었다",
    "dataloader-stuck": "데이터 로더 워커가 배치를 내놓지 않을 수 있다",
    "blocked-call": "바깥으로의 호출(네트워크, 파일 시스템, 서비스)이 돌아오지 않을 수 있다",
    "lock-wait": "랭크들이 죽은 프로세스가 남긴 것 같은 잠금을 기다릴 수 있다",
    "rank-missing": "어떤 랭크가 시작되지 않았거나 init_process_group에 오지 않았을 수 있다",
    "address-unreachable": "MASTER_ADDR이 응답하지 않을 수 있다",
    "uneven-data": "어떤 랭크의 배치가 다른 랭크보다 적을 수 있다",
    "comm-error": "gather 자체가 끝나지 않을 수 있다: GPU 사이의 링크, 또는 첫 pass에서 혼합 정밀도의 변환; 큰 "
    "모델에서는 몇 분이 걸린다",
}
_IN_COLLECTIVE: dict[Phase, str] = {
    "forward": "어떤 랭크가 그 pass의 첫 집합 통신(DDP의 broadcast나 축약, FSDP의 파라미터 gather)에 들어오지 않을 수 "
    "있다",
    "batch": "어떤 랭크가 그 pass의 첫 집합 통신(DDP의 broadcast나 축약, FSDP의 파라미터 gather)에 들어오지 않을 수 "
    "있다",
    "barrier": "어떤 랭크가 barrier에 오지 않을 수 있다",
    "model": "어떤 랭크가 DDP나 FSDP가 모델을 비교하고 퍼뜨리는 집합 통신에 들어오지 않을 수 있다",
    "save": "일부 랭크만 저장하는데, 상태는 모두가 모은다",
}


@sentence.register
def _(fact: AllWell) -> str:
    return f"랭크 {fact.world}개 모두 정상이다"


@sentence.register
def _(fact: EndedWithZero) -> str:
    return f"랭크 {fact.world}개 모두 코드 0으로 끝났다" if fact.world > 1 else "하나뿐인 랭크가 코드 0으로 끝났다"


@sentence.register
def _(fact: SeenToMove) -> str:
    return f"이상이 보이지 않는다: {ranks_text(fact.ranks):이} 움직인다"


@sentence.register
def _(fact: Looked) -> str:
    at = f" ({place(fact.where)})" if fact.where is not None else ""
    return f"랭크 {fact.rank}{at}: {'; '.join(map(sentence, fact.seen)) or '아무것도 볼 수 없었다'}"


def _of(ranks: tuple[int, ...]) -> str:
    return f"{ranks_text(ranks)}의 " if ranks else ""


@sentence.register
def _(fact: LoggedSteps) -> str:
    ago = f" (읽기 {span(fact.ago_s)} 전)" if fact.ago_s is not None else ""
    return f"{_of(fact.ranks)}로그가 스텝 {fact.last}까지 센다{ago}"


@sentence.register
def _(fact: SaidDone) -> str:
    return f"{_of(fact.ranks)}로그의 끝: {fact.line!r}"


@sentence.register
def _(fact: NothingToRead) -> str:
    if fact.refused:
        return "주어진 것 중에 작업의 증거로 읽을 수 있는 것이 없다"
    return "읽을 수 있는 것이 주어지지 않았다: 파일이 없다"


@sentence.register
def _(fact: NotUsed) -> str:
    return f"쓰지 않음: {fact.what}"


@sentence.register
def _(fact: CollectorNote) -> str:
    return f"{fact.what}: {fact.why}"


@sentence.register
def _(fact: NoRankNamed) -> str:
    return f"텍스트 {fact.lines}줄 어디에도 랭크, 실패, 종료를 말하는 것이 없다"


@headline.register
def _(fact: LogsEnd) -> str:
    when = f" {span(fact.ago_s)} 전에" if fact.ago_s is not None else ""
    at = f" {_IN_PHASE[fact.phase]}" if _IN_PHASE[fact.phase] else ""
    whose = Word("로그") if not fact.ranks else ranks_text(fact.ranks)
    return f"{whose:이}{when}{at} 조용해졌다; 작업이 서 있는지 사라졌는지는 로그로 알 수 없다"


@sentence.register
def _(fact: LogsEnd) -> str:
    return headline(fact)


@sentence.register
def _(fact: LastLinesDiffer) -> str:
    return f"{ranks_text(fact.ranks)}의 마지막 줄들은 {ranks_text(fact.others)}의 것과 다른 것을 말한다"


@sentence.register
def _(fact: JudgedBefore) -> str:
    return f"이 실행 자체의 판정은 {fact.outcome.upper()}였다. 그 증거는 읽을 수 없고, 로그만으로는 알 수 없다"


@sentence.register
def _(_fact: NoEndTold) -> str:
    return "로그에 예외도, 종료 코드도, 알려진 메시지도 없다"


@sentence.register
def _(fact: NoLogOf) -> str:
    return f"{ranks_text(fact.ranks)}의 줄이 로그에 없다"


@sentence.register
def _(fact: InUnfinished) -> str:
    return f"랭크 {Word(fact.rank):은} {sentence(fact.call)}에 있었다"


@sentence.register
def _(fact: OneLook) -> str:
    which = f"; 쓰일 때 {ranks_text(fact.unfinished):은} 호출을 끝내지 않은 상태였다" if fact.unfinished else ""
    return f"이 파일들에는 무언가 잘못되었다는 것도, 작업이 계속되었다는 것도 드러나지 않는다{which}"


@sentence.register
def _(fact: StoodStill) -> str:
    parts = []
    if fact.ranks:
        parts.append(f"{ranks_text(fact.ranks):은} 그동안 멈춰 있었고, 이유나 누가 기다리는지는 드러나지 않는다")
    if fact.busy:
        parts.append(f"{ranks_text(fact.busy):은} 프로세서를 썼지만 나아간 것이 보이지 않는다")
    if fact.moving:
        parts.append(f"{ranks_text(fact.moving):은} 움직인다")
    return "; ".join(parts)


@sentence.register
def _(fact: CouldNotRead) -> str:
    return f"{ranks_text(fact.ranks)}의 스택을 읽을 수 없었다: {fact.why}"


@sentence.register
def _(fact: EndedMeanwhile) -> str:
    if not fact.ranks:
        return "작업의 랭크가 남아 있지 않다"
    return f"{ranks_text(fact.ranks):이} 지켜보는 동안 끝났다; 어떤 코드인지는 런처만 안다"


@sentence.register
def _(_fact: NoRankFound) -> str:
    return "여기에는 들여다볼 수 있는 분산 작업의 랭크가 없다: torch와 랭크를 가진 Python 프로세스가 없다"


def _processes(pids: tuple[int, ...]) -> Word:
    return Word(f"프로세스 {', '.join(map(str, pids[:8]))}")


@sentence.register
def _(fact: NoRank) -> str:
    what = f" ({fact.command[:60]})" if fact.command else ""
    return f"{Word(f'{_processes(fact.pids)}{what}'):이} 작업의 랭크라는 흔적이 없다"


@sentence.register
def _(fact: LauncherAlone) -> str:
    return f"프로세스 {Word(fact.pid):은} 런처이고, 그 랭크 중 아직 torch를 불러온 것이 없다: {fact.command[:80]}"


@sentence.register
def _(fact: NoRankVariable) -> str:
    return f"{_processes(fact.pids)}의 환경은 랭크를 말하지 않고, torch.distributed에 서 있는 스택도 없다"


@sentence.register
def _(fact: RunsOn) -> str:
    return f"{ranks_text(fact.ranks):은} {fact.host}에서 돈다"


@sentence.register
def _(fact: MayStand) -> str:
    if fact.cause == "collective-skipped":
        return _IN_COLLECTIVE.get(fact.phase, _MAY_STAND[fact.cause])
    return _MAY_STAND[fact.cause]
