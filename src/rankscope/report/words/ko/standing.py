"""Korean words for what a living rank does that others wait for."""

from __future__ import annotations

from rankscope.diagnosis.facts.standing import (
    AtStage,
    AwaitedBy,
    AwaitsBatch,
    AwaitsChildren,
    AwaitsDatabase,
    AwaitsFileLock,
    AwaitsGpu,
    AwaitsLock,
    AwaitsLockFile,
    AwaitsQueue,
    AwaitsService,
    AwaitsThread,
    BeyondRhythm,
    CannotRun,
    Child,
    Does,
    DriverSilent,
    Frozen,
    GpuBehind,
    GpuUse,
    Holder,
    HoldsInterpreterLock,
    InSyscall,
    Joins,
    KeepsAlive,
    KernelState,
    ListedAsWaiting,
    LoopCannotEnd,
    Loops,
    Moved,
    NobodyPrepares,
    NotInitialised,
    NotRuledOut,
    NotSeen,
    OnNetworkFileSystem,
    Outside,
    Polls,
    ProgramOver,
    SeenHoldingLock,
    Sleeps,
    StandsIn,
    Still,
    Stuck,
    ThreadDied,
    ThreadStands,
    WorkersStuck,
    WorkerStuck,
    Works,
    WorksBetweenSleeps,
    XidReported,
)
from rankscope.diagnosis.verdict import Where
from rankscope.diagnosis.views import LIFE_CPU_SHARE, LIFE_IO_BYTES_PER_S
from rankscope.report.words.ko import doing, headline, sentence
from rankscope.report.words.ko import standing_advice as _advice  # noqa: F401
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.ko.phrases import after_steps, place, ranks_text

_SHOWN_CHILDREN = 3

_NOT_RULED_OUT = {
    "native-call": "네이티브 호출이 작업 밖의 무언가를 기다릴 수 있다",
    "queue-lock": "죽은 프로세스가 큐의 잠금을 쥐고 있었을 수 있다",
    "queue-reader": "큐를 읽어야 할 프로세스가 멈춰 있을 수 있다",
    "holder-alive": "쥐고 있는 쪽이 살아서 일하고 있을 수 있다",
    "polled-lock": "기다리는 것을 다른 프로세스가 쥐고 있을 수 있다",
    "file-system-lock": "파일 시스템이 잠금 요청에 응답하지 않을 수 있다",
    "releasing-thread": "풀어 주어야 할 스레드가 바깥에서 막혀 있을 수 있다",
    "thread-outside": "스레드가 바깥의 무언가를 기다릴 수 있다",
    "loader-threads": "배치가 로더 자신의 스레드에서 막혀 있을 수 있다",
    "long-kernel": "긴 커널도 끝날 때까지는 똑같아 보인다",
    "not-the-gpu": "그 호출이 GPU가 아닌 다른 것을 기다릴 수 있다",
    "endless-kernel": "끝나지 않는 커널도 GPU를 바쁘게 한다",
    "endless-loop": "하나의 루프에서, 지금까지 한 바퀴에 걸린 것보다 훨씬 오래 바쁘다",
    "long-work": "할 일이 많은 루프도 끝날 때까지는 똑같아 보인다",
}
_OUTSIDE = {
    "connect": "{target}에 연결하는 중",
    "accept": "{target:으로} 들어올 연결을 기다리는 중",
    "answer": "{target}의 응답을 기다리는 중",
    "send": "{target:으로} 보내는 중",
    "store-answer": "{target}에 있는 작업 store의 응답을 기다리는 중",
    "store-send": "{target}에 있는 작업 store로 보내는 중",
    "pipe-read": "아무도 쓰지 않는 파이프에서 읽는 중",
    "pipe-write": "아무도 읽지 않는 파이프에 쓰는 중",
    "local-answer": "로컬 서비스({target})의 응답을 기다리는 중",
    "local-send": "로컬 서비스({target})로 보내는 중",
    "typing": "누군가 입력하기를 기다리는 중",
    "read": "{target:을} 읽는 중, 돌아오지 않음",
    "write": "{target}에 쓰는 중, 돌아오지 않음",
    "input": "디스크립터의 입력을 기다리는 중",
    "network-files": "{target} 때문에 네트워크 파일 시스템을 기다리는 중",
    "files": "{target} 때문에 파일 시스템을 기다리는 중",
    "event-loop": "어떤 작업도 나아가지 않는 이벤트 루프에서 기다리는 중",
    "open": "{target:을} 여는 중, 돌아오지 않음",
    "open-pipe": "반대쪽 끝을 아무도 열지 않는 파이프 {target:을} 여는 중",
    "sleep": "sleep 하는 중",
}
_UNKNOWN_TARGETS = {"connect": "어떤 주소", "accept": "자기 포트", "open": "어떤 파일", "open-pipe": "어떤 파일"}
_LOCKS = {
    "lock": "잠금이나 다른 스레드의 신호를 기다리는 중",
    "handler": "로그 핸들러의 잠금을 기다리는 중",
    "queue-put": "어떤 스레드도 비우지 않는 가득 찬 큐에 넣는 중",
    "queue-get": "어떤 스레드도 채우지 않는 빈 큐를 기다리는 중",
    "future": "어떤 스레드도 완료하지 않는 future를 기다리는 중",
}
_QUEUES = {
    "put": "프로세스 사이의 가득 찬 큐에 넣는 중: 아무도 꺼내지 않는다",
    "get": "프로세스 사이의 빈 큐를 기다리는 중: 아무도 넣지 않는다",
    "flush": "아무도 읽지 않는 큐가 다 쓰이기를 기다리는 중",
}
_PHASES = {
    "compiling": "컴파일하는 중",
    "saving": "체크포인트를 저장하는 중",
    "loading": "체크포인트를 읽는 중",
    "checkpoint": "체크포인트를 저장하거나 읽는 중",
    "data": "데이터를 읽는 중",
    "preparing": "데이터를 토큰화하거나 전처리하는 중",
    "importing": "import 하는 중",
    "gpu": "일하고 있는 GPU를 기다리는 중",
    "": "일하는 중",
}
_OVER = {
    "threads": "메인 스레드는 프로그램을 떠났고 다른 스레드들을 기다린다",
    "children": "프로그램은 끝났고 자식 프로세스들을 기다린다",
    "queue": "프로그램은 끝났고 큐에 넣은 것이 다 쓰이기를 기다린다",
    "handlers": "프로그램은 끝났고 인터프리터가 종료 핸들러를 돌린다",
}
_XID = {
    13: "프로그램의 커널이 메모리에 잘못 접근했다",
    31: "프로그램의 커널이 매핑되지 않은 메모리를 건드렸다",
    43: "프로그램의 커널이 오류 뒤에 멈춰졌다",
    45: "다른 오류나 kill 뒤에 프로그램의 작업이 GPU에서 제거되었다",
    48: "GPU 메모리에 고칠 수 없는 오류가 있다",
    61: "GPU 자체의 컨트롤러가 멈췄다",
    62: "GPU 자체의 컨트롤러가 멈췄다",
    63: "GPU 메모리의 행 하나가 사용 중지되었다",
    64: "GPU 메모리의 행 하나를 사용 중지하지 못했다",
    74: "NVLink 연결에 장애가 났다",
    79: "GPU가 버스에서 떨어졌다",
    94: "한 프로그램에 갇힌 GPU 메모리 오류",
    95: "퍼져 나간 GPU 메모리 오류",
    119: "GPU의 시스템 프로세서가 응답하지 않는다",
    120: "GPU의 시스템 프로세서에 장애가 났다",
}


@sentence.register
def _(fact: Moved) -> str:
    seen = []
    if fact.same_stack is not None:
        seen.append("같은 스택" if fact.same_stack else "스택이 움직였다")
    if fact.cpu_share is not None:
        seen.append("프로세서 시간 없음" if fact.cpu_share < LIFE_CPU_SHARE else f"코어 하나의 {fact.cpu_share:.0%}")
    if fact.bytes_per_s is not None:
        quiet = fact.bytes_per_s < LIFE_IO_BYTES_PER_S
        seen.append("읽거나 쓴 것 없음" if quiet else f"{fact.bytes_per_s / 1e6:.1f} MB/s를 읽고 썼다")
    return f"{fact.apart_s:.1f}초 간격의 표본 {fact.samples}개: {', '.join(seen)}"


@sentence.register
def _(fact: Still) -> str:
    return f"{fact.for_s:.0f}초 동안 움직이지 않았다"


@sentence.register
def _(fact: WorksBetweenSleeps) -> str:
    return f"{fact.over_s:.1f}초 동안 {fact.wakes}번 깨어나 {1000 * fact.cpu_s:.0f} ms 일했다"


@sentence.register
def _(fact: AwaitedBy) -> str:
    return f"{ranks_text(fact.ranks):이} 이를 기다린다"


@sentence.register
def _(fact: NotInitialised) -> str:
    return f"랭크 {Word(fact.rank):은} init_process_group에 이르지 못했다; {ranks_text(fact.joined):은} 이르렀다"


@sentence.register
def _(fact: NotSeen) -> str:
    return f"{Word(fact.what):을} 얻을 수 없었다: {fact.why}"


@sentence.register
def _(fact: AtStage) -> str:
    return f"{after_steps(fact.step)} {fact.stage!r} 단계에 있다"


@sentence.register
def _(fact: Stuck) -> str:
    return f"랭크 {Word(fact.rank):이} {place(fact.where)}에서 멈춰 있다: {doing(fact.doing)}"


@sentence.register
def _(fact: Does) -> str:
    return f"랭크 {fact.rank}: {doing(fact.doing)}"


@headline.register
def _(fact: Does) -> str:
    still = ", 움직이지 않음" if isinstance(fact.doing, StandsIn) else ""
    return sentence(fact) + still


@sentence.register
def _(fact: CannotRun) -> str:
    return f"랭크 {fact.rank}의 프로세스: {doing(fact.state)}{_in(fact.where)}"


@sentence.register
def _(fact: Frozen) -> str:
    if fact.stopped:
        return "중지됨 (SIGSTOP이나 디버거)"
    return f"{fact.wchan or '커널'}에서 인터럽트할 수 없는 대기 상태"


@sentence.register
def _(fact: KernelState) -> str:
    told = f"커널에 따르면 프로세스 {fact.pid}의 상태는 {fact.state}"
    return f"{told}: 중지됨" if fact.state != "D" else f"{told} (표본 {fact.samples}개 모두): 인터럽트할 수 없는 대기"


@sentence.register
def _(fact: OnNetworkFileSystem) -> str:
    return f"{Word(fact.wchan):은} 응답하지 않을 수 있는 네트워크 파일 시스템의 것이다"


@sentence.register
def _(fact: NotRuledOut) -> str:
    return _NOT_RULED_OUT[fact.what]


@sentence.register
def _(fact: HoldsInterpreterLock) -> str:
    return f"네이티브 코드{f'({fact.function})' if fact.function else ''}가 인터프리터 잠금을 쥐고 있다"


@sentence.register
def _(fact: SeenHoldingLock) -> str:
    which = Word("메인 스레드" if fact.thread is None else f"스레드 {fact.thread}")
    if fact.samples > 1:
        return f"{which:이} 표본 {fact.samples}개에서 같은 줄에서 인터프리터 잠금을 쥐고 있다"
    return f"{which:이} 인터프리터 잠금을 쥐고 있고, 그 랭크의 다른 Python 스레드는 응답하지 않았다"


@sentence.register
def _(fact: Sleeps) -> str:
    return f"{place(fact.where)}에서 sleep 하는 중"


@sentence.register
def _(fact: InSyscall) -> str:
    return f"{fact.name}에서 기다린다" + (f" (대상: {fact.target})" if fact.target else "")


@sentence.register
def _(fact: Outside) -> str:
    target = Word(fact.target or _UNKNOWN_TARGETS.get(fact.wants, "무언가"))
    text = _OUTSIDE[fact.wants].format(target=target)
    return f"{fact.call}에서 {text}" if fact.call is not None else text


@sentence.register
def _(fact: Child) -> str:
    state = doing(fact.state) if fact.state is not None else ""
    if fact.state is None and fact.where is not None:
        state = f"{place(fact.where)}에 서 있음"
    return f"{fact.pid} ({fact.command[:60]})" + (f", {state}" if state else "")


@headline.register
def _(fact: Child) -> str:
    return f"자식 {sentence(fact)}"


@sentence.register
def _(fact: AwaitsChildren) -> str:
    return f"메인 스레드가 {Word(_names(fact)):을} 기다린다"


@doing.register
def _(fact: AwaitsChildren) -> str:
    told = sentence(fact.children[0]) if len(fact.children) == 1 else _names(fact)
    if len(fact.children) > 1 and not fact.idle and fact.children[0].where is not None:
        told += f"; 첫째는 {place(fact.children[0].where)}에 서 있다"
    idle = ": 일을 가진 워커가 없고, 기다리는 것은 사라졌다" if fact.idle else ""
    return f"자식 프로세스를 기다리는 중: {told}{idle}"


@sentence.register
def _(fact: AwaitsService) -> str:
    service = f" (그 프로세스는 {Word(', '.join(fact.addresses)):과} 통신한다)" if fact.addresses else ""
    return f"{fact.label}에서 그 서비스를 기다리는 중{service}"


@sentence.register
def _(fact: StandsIn) -> str:
    return f"서 있는 곳: {_standing(fact)}"


@doing.register
def _(fact: StandsIn) -> str:
    return f"{_standing(fact)}에 서 있음" if _standing(fact) else "거기에 움직이지 않고 서 있음"


@sentence.register
def _(fact: Holder) -> str:
    return _holder(fact)


def _holder(fact: Holder) -> Word:
    if fact.relation == "same":
        return Word(f"같은 프로세스({fact.pid})")
    if fact.relation == "child":
        return Word(f"랭크 {fact.rank}의 자식 (프로세스 {fact.pid}: {fact.command[:80]})")
    if fact.relation == "outside":
        return Word(f"작업 밖의 프로세스 {fact.pid}")
    state = ", 이미 끝났음" if fact.ended else f", {place(fact.where)}에 서 있음" if fact.where else ""
    return Word(f"랭크 {fact.rank} (프로세스 {fact.pid}{state})")


@sentence.register
def _(fact: AwaitsFileLock) -> str:
    return f"{fact.path}의 잠금을 기다리는 중" + (f", {_holder(fact.holder):이} 쥐고 있다" if fact.holder else "")


@sentence.register
def _(fact: ListedAsWaiting) -> str:
    return f"커널의 목록에서 프로세스 {Word(fact.pid):이} {fact.path}의 {fact.lock} 잠금을 기다린다"


@sentence.register
def _(fact: AwaitsLockFile) -> str:
    loop = f" ({fact.loop})" if fact.loop else ""
    return f"스택이 잠금 파일을 보고 sleep 하는 라이브러리의 루프에 서 있다{loop}"


@doing.register
def _(fact: AwaitsLockFile) -> str:
    return f"{Word(fact.path or '잠금 파일'):이} 풀리기를 기다리는 중"


@sentence.register
def _(fact: Polls) -> str:
    test = Word(f"`{fact.test}`" if fact.test else "조건")
    ends = {"vanishes": " 파일이 사라질 때까지", "appears": " 파일이 생길 때까지", "true": ""}[fact.until]
    return f"{place(fact.where)}에서{ends} {test:을} 되풀이해 확인하는 중"


@sentence.register
def _(fact: AwaitsLock) -> str:
    if fact.held_at is not None:
        return f"메인 스레드가 {place(fact.held_at)}에서 스스로 잡아 아직 쥐고 있는 잠금을 기다린다"
    return {"lock": "메인 스레드가 자기 프로세스 안의 잠금을 기다린다"}.get(fact.of, f"메인 스레드: {_LOCKS[fact.of]}")


@doing.register
def _(fact: AwaitsLock) -> str:
    if fact.held_at is not None:
        return f"{place(fact.held_at)}에서부터 스스로 쥐고 있는 잠금을 기다리는 중"
    return _LOCKS[fact.of] + (f" ({sentence(fact.suspect)})" if fact.suspect is not None else "")


@sentence.register
def _(fact: ThreadStands) -> str:
    at = place(fact.where) if fact.where or not fact.call else fact.call
    return f"스레드 {Word(fact.thread):이} {at}에 서 있다"


@sentence.register
def _(fact: ThreadDied) -> str:
    at = f"{place(fact.where)}에서 " if fact.where is not None else ""
    return f"스레드 {Word(fact.thread):이} {at}{Word(fact.error):으로} 끝났다"


@sentence.register
def _(fact: AwaitsThread) -> str:
    return f"그 스레드 {Word(fact.thread):이} 끝나지 않는다" + (f": {fact.call}에 서 있다" if fact.call else "")


@sentence.register
def _(fact: Joins) -> str:
    return f"메인 스레드가 {place(fact.where)}에서 자기 스레드 {Word(fact.thread):을} 기다린다"


@sentence.register
def _(fact: AwaitsDatabase) -> str:
    return "다른 연결이 데이터베이스를 놓기를 기다리는 중" + (f": `{fact.statement}`" if fact.statement else "")


@sentence.register
def _(fact: AwaitsQueue) -> str:
    return _QUEUES[fact.way]


@sentence.register
def _(fact: KeepsAlive) -> str:
    return f"{_keeper(fact):이} 끝난 프로그램을 살려 두고 있다"


@headline.register
def _(fact: KeepsAlive) -> str:
    at = f"{place(fact.where)}에 있는 " if fact.where is not None else ""
    return f"랭크 {Word(fact.rank):은} 일을 마쳤지만 {at}{_keeper(fact):이} 종료를 막는다"


@sentence.register
def _(fact: ProgramOver) -> str:
    return _OVER[fact.awaits]


@sentence.register
def _(fact: AwaitsGpu) -> str:
    return f"랭크 {Word(fact.rank):이} {place(fact.where)}에서 끝내지 못하는 GPU를 기다린다"


@doing.register
def _(_: AwaitsGpu) -> str:
    return "GPU를 기다리는 중"


@sentence.register
def _(fact: XidReported) -> str:
    return f"드라이버가 GPU {fact.gpu}의 Xid {Word(fact.xid):을} 알렸다: {_XID.get(fact.xid, 'GPU 장애')}"


@sentence.register
def _(fact: GpuUse) -> str:
    text = f"GPU {fact.index} ({fact.name}) 사용률 {fact.percent} %"
    if fact.computes is None:
        return text
    return f"{text}, 계산한다" if fact.computes else f"{text}, 아무것도 계산하지 않는다: 커널이 기다리기만 한다"


@sentence.register
def _(fact: GpuBehind) -> str:
    who = f"{ranks_text(fact.waiters)}의 GPU가 거기서 기다린다" if fact.waiters else "다른 GPU도 시작하지 않았다"
    return (
        f"랭크 {Word(fact.rank):이} {fact.op} {Word(fact.number):을} {fact.for_s:.0f}초 전에 GPU에 주었는데 시작하지 "
        f"않았다: 그 앞의 커널이 계속 돌고, {who}"
    )


@sentence.register
def _(_: DriverSilent) -> str:
    return "드라이버가 GPU에 대해 아무 답도 하지 않는다"


@sentence.register
def _(fact: AwaitsBatch) -> str:
    return f"메인 스레드가 {place(fact.where)}에서 배치를 기다린다"


@sentence.register
def _(fact: WorkersStuck) -> str:
    return f"데이터 로더 워커 {fact.total}개 중 {fact.stuck}개가 멈춰 있다: 프로세스 {fact.pid}{_in(fact.where)}"


@sentence.register
def _(fact: WorkerStuck) -> str:
    at = f"{place(fact.where)}에서 " if fact.where is not None else ""
    return f"랭크 {fact.rank}의 데이터 로더 워커가 {at}멈춰 있다: {doing(fact.doing)}"


@sentence.register
def _(fact: NobodyPrepares) -> str:
    if fact.alive < fact.declared:
        return f"데이터 로더 워커 {fact.declared}개 중 {fact.declared - fact.alive}개가 사라졌다"
    return f"데이터 로더 워커 {fact.alive}개가 모두 일을 기다린다"


@doing.register
def _(_: NobodyPrepares) -> str:
    return "어떤 데이터 로더 워커도 준비하지 않는 배치를 기다리는 중"


@sentence.register
def _(fact: Works) -> str:
    if fact.child is not None:
        return f"{place(fact.where)}에서, 일하고 있는 자식 프로세스 {Word(sentence(fact.child)):을} 기다리는 중"
    phase = f"{fact.bytes_per_s / 1e6:.0f} MB/s로 쓰는 중" if fact.phase == "writing" else _PHASES[fact.phase]
    return f"{place(fact.where)}에서 {phase}"


@sentence.register
def _(fact: Loops) -> str:
    return (
        f"{place(fact.where)}에서, {fact.loop_line}번 줄의 루프에서 바쁘며 {fact.for_s:.0f}초 동안 아무것도 마치지 "
        "못했다"
    )


@sentence.register
def _(fact: LoopCannotEnd) -> str:
    return f"{fact.line}번 줄의 루프에는 {Word(f'`{fact.test or True}`'):을} 바꾸거나 루프를 나가는 것이 없다"


@sentence.register
def _(fact: BeyondRhythm) -> str:
    turn = "매번 도는 루프에서 " if fact.every_turn else ""
    return (
        f"{turn}표본 {fact.samples}개; {fact.for_s:.0f}초 동안 아무 기록이 없다. 지금까지 가장 긴 한 바퀴는 "
        f"{fact.longest_s:.2g}초였다"
    )


def _in(at: Where | None) -> str:
    return f", {place(at)}에서" if at is not None else ""


def _names(fact: AwaitsChildren) -> str:
    return ", ".join(f"{each.pid} ({each.command[:60]})" for each in fact.children[:_SHOWN_CHILDREN])


def _keeper(fact: KeepsAlive) -> Word:
    if fact.what == "child":
        return Word(f"자식 프로세스 {fact.pid} ({fact.name[:60]})")
    return Word(
        {
            "thread": f"스레드 {fact.name}",
            "feeder": "아무도 읽지 않는 프로세스 사이의 큐",
            "handler": "종료 핸들러",
        }[fact.what]
    )


def _standing(fact: StandsIn) -> str:
    """`push (train.py:88), requests.post, 가장 안쪽 socket.readinto, 네이티브 sem_wait, 시스템 호출 futex`."""
    parts = [place(fact.where)] if fact.where is not None else []
    parts += [Word(fact.call)] if fact.call else []
    deeper = {"가장 안쪽": fact.innermost, "네이티브": fact.native, "시스템 호출": fact.syscall}
    names = [f"{kind} {name}" for kind, name in deeper.items() if name and fact.where is not None]
    return ", ".join([*parts, *names])
