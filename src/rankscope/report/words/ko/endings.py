"""Korean words for how ranks ended."""

from __future__ import annotations

from rankscope.diagnosis.facts import endings as facts
from rankscope.diagnosis.verdict import Where
from rankscope.report.words.ko import doing, headline, sentence
from rankscope.report.words.ko.meanings import MEANINGS
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.ko.phrases import after_steps, place, ranks_text, who

_TOLD_CAUSE = {"out-of-memory-host": ": 호스트 메모리가 바닥났다", "shm-exhausted": ": /dev/shm이 가득 찼다"}
_LED = {
    "cause": "그로부터 발생했다",
    "context": "그것을 처리하는 중에 발생했다",
    "suppressed": "그것을 처리하는 중에 발생했다(`from None`이 이를 숨긴다)",
    "group": "그것과 다른 것들을 함께 담고 있다",
    "quoted": "그 문구를 되풀이한다",
}


def _in(at: Where | None) -> str:
    return f" {place(at)}에서" if at is not None else ""


def _says(text: str) -> str:
    return f": {text}" if text else ""


def _beside(fact: facts.Raised) -> str:
    """In which process or thread of the rank it was raised."""
    if fact.loader_worker is not None:
        return f" (데이터 로더 워커 {fact.loader_worker})"
    if fact.spawned is not None:
        return f" (spawn된 프로세스 {fact.spawned})"
    return f" (스레드 {fact.thread})" if fact.thread else ""


@headline.register
def _(fact: facts.Raised) -> str:
    thread = f" 스레드 {fact.thread}," if fact.thread else ""
    return f"{who(fact.rank):이}{thread} {place(fact.at)}에서 {Word(fact.type):을} 일으켰다{_says(fact.text)}"


@doing.register
def _(fact: facts.Raised) -> str:
    return f"{Word(fact.type):을} 일으켰다{_says(fact.text)}{_beside(fact)}"


@sentence.register
def _(fact: facts.Raised) -> str:
    rank = "어떤 랭크" if fact.rank is None else f"랭크 {fact.rank}"
    if fact.fate == "pending":
        return f"{place(fact.at)}에서 발생한 {Word(fact.type):이} {rank}에서 처리되는 중이다"
    if fact.fate == "caught":
        return f"{rank}의 프로그램이 {place(fact.at)}에서 발생한 {Word(fact.type):을} 잡은 적이 있다{_says(fact.text)}"
    if fact.fate == "thread":
        return f"{place(fact.at)}에서 발생한 {Word(fact.type):이} {rank}의 스레드 {Word(fact.thread):을} 끝냈다"
    return f"{place(fact.at)}에서 발생한 {Word(fact.type):이} {rank}에서 잡히지 않았다"


@sentence.register
def _(fact: facts.MadeLater) -> str:
    return f"{Word(fact.path):은} 오류가 난 지 {fact.seconds:.1f}초 뒤에 만들어졌거나 쓰였다: 누군가 아직 작업 중이었다"


@sentence.register
def _(fact: facts.YetToMake) -> str:
    return f"랭크 {Word(fact.rank):은} 아직 {place(fact.where)}에, 그 줄에 앞서 혼자 하는 일에 있다"


@sentence.register
def _(fact: facts.CameOutAs) -> str:
    return f"밖으로는 {Word(fact.type):으로} 나타났다{_says(fact.text)}. 이는{_in(fact.at)} {_LED[fact.led]}"


@sentence.register
def _(fact: facts.RaisedWhileHandling) -> str:
    return f"프로그램은 예상하고 있던 {place(fact.handled_at)}의 {Word(fact.handled):을} 처리하는 중이었다"


@sentence.register
def _(fact: facts.RepeatsErrorOf) -> str:
    return f"{ranks_text(fact.ranks):은} 랭크 {fact.of}의 오류를 되풀이할 뿐이다"


@sentence.register
def _(fact: facts.Means) -> str:
    meaning = MEANINGS[fact.known]
    return f"마지막 말의 뜻: {meaning}" if fact.last_words else f"문구의 뜻: {meaning}"


@sentence.register
def _(fact: facts.Remark) -> str:
    return MEANINGS[fact.known]


@sentence.register
def _(fact: facts.SeenAsException) -> str:
    return f"예외로 보면 {place(fact.at)}의 {Word(fact.type):이다}"


@sentence.register
def _(fact: facts.PrintedTraceback) -> str:
    return f"{place(fact.at)}에서 발생한 {Word(fact.type):을} 잡은 적이 있다"


@sentence.register
def _(fact: facts.EndedWith) -> str:
    call = f" {Word(fact.call):으로}" if fact.call else ""
    if not fact.chosen:
        return f"{who(fact.rank):이}{call} 코드 {Word(fact.code):으로} 끝났다"
    return f"{who(fact.rank):이}{_in(fact.at)}{call} 코드 {Word(fact.code):으로} 끝났다. 잡히지 않은 예외는 없었다"


@headline.register
def _(fact: facts.ChoseCode) -> str:
    if fact.because is None:
        return f"랭크 {Word(fact.rank):이}{_in(fact.at)} 스스로 코드 {Word(fact.code):으로} 끝났다"
    raised = fact.because
    return (
        f"랭크 {Word(fact.rank):이}{_in(raised.at)} 난 {raised.type} 뒤에 스스로 코드 {Word(fact.code):으로} "
        f"끝났다{_says(raised.text)}"
    )


@doing.register
def _(fact: facts.ChoseCode) -> str:
    after = f" ({fact.because.type}{_says(fact.because.text)} 뒤)" if fact.because is not None else ""
    return f"코드 {Word(fact.code):으로} 끝났다{after}"


@sentence.register
def _(fact: facts.ChoseCode) -> str:
    return headline(fact)


@sentence.register
def _(fact: facts.RaisesThatCode) -> str:
    branch = "" if fact.caught is None else f" (`except{' ' * bool(fact.caught)}{fact.caught}` 안)"
    return f"이 코드를 내는 프로그램의 유일한 `raise SystemExit`는 {place(fact.at)}에 있다{branch}"


@sentence.register
def _(fact: facts.LogEndsWithTraceback) -> str:
    return f"랭크 {fact.rank}의 로그가 이 traceback으로 끝난다"


@sentence.register
def _(fact: facts.HandledSignals) -> str:
    return f"그 프로그램은 전에 {Word(', '.join(fact.signals)):을} 처리한 적이 있다"


@headline.register
def _(fact: facts.EndedBySignal) -> str:
    how = f"{Word(fact.signal):으로} " + ("충돌했다" if fact.cause == "native-crash" else "끝났다")
    leaving = " 프로그램이 끝난 뒤 나가는 길에" if fact.leaving and fact.at is None else ""
    return f"랭크 {Word(fact.rank):이}{_in(fact.at)}{leaving} {how}{_TOLD_CAUSE.get(fact.cause, '')}"


@doing.register
def _(fact: facts.EndedBySignal) -> str:
    return f"{Word(fact.signal):으로} 끝났다"


@sentence.register
def _(fact: facts.EndedBySignal) -> str:
    code = "" if fact.code is None else f" (종료 코드 {fact.code})"
    return f"랭크 {fact.rank} (프로세스 {fact.pid}){_after(fact.rank)} {Word(fact.signal):으로} 끝났다{code}"


def _after(rank: int) -> str:
    return f"{Word(rank):이}".removeprefix(str(rank))


@sentence.register
def _(fact: facts.InterpreterWasLeaving) -> str:
    told = "프로그램은 끝났고 인터프리터가 내려가는 중이었다: 프로그램의 어떤 줄도 실행 중이 아니었다"
    thread = "; C++ 스레드가 사라진 Python을 찾았고 C++ 런타임이 프로세스를 끝냈다"
    return told + (thread if fact.native_thread else "")


@sentence.register
def _(fact: facts.MemoryKiller) -> str:
    if fact.line:
        return f"커널 로그에 따르면: {fact.line}"
    return f"메모리 컨트롤러가 작업이 시작된 뒤 그 프로세스 {fact.kills}개를 죽였다"


@sentence.register
def _(fact: facts.NoMemoryKillerSeen) -> str:
    missing = f" ({'; '.join(fact.missing)})" if fact.missing else ""
    return f"메모리 킬러도 SIGKILL을 보내지만, 그렇다는 흔적은 없다{missing}"


@sentence.register
def _(_: facts.MemoryKillerEndsWorkersSo) -> str:
    return "메모리 킬러가 워커를 이렇게 끝낸다"


@sentence.register
def _(_: facts.SignalMayComeFromElsewhere) -> str:
    return "시그널이 다른 곳에서 왔을 수 있다"


@sentence.register
def _(fact: facts.MemoryLimit) -> str:
    return f"--memory-limit으로 각 랭크의 주소 공간이 {Word(fact.limit):으로} 제한되었다"


@headline.register
def _(fact: facts.WorkerDied) -> str:
    at = f" ({place(fact.at)}에서 관측)" if fact.at is not None else ""
    return f"랭크 {fact.rank}의 데이터 로더 워커(프로세스 {fact.pid})가 {_death(fact)}{at}"


@doing.register
def _(fact: facts.WorkerDied) -> str:
    return _death(fact)


@sentence.register
def _(fact: facts.WorkerDied) -> str:
    return f"데이터 로더 워커 {Word(fact.pid):이} {_death(fact)}; 그 때문에 랭크 {Word(fact.rank):이} 끝났다"


def _death(fact: facts.WorkerDied) -> str:
    if fact.signal:
        return f"{Word(fact.signal):으로} 끝났다"
    return "아무 말 없이 끝났다" if fact.code is None else f"코드 {Word(fact.code):으로} 끝났다"


@sentence.register
def _(fact: facts.FailedAlike) -> str:
    return f"{ranks_text(fact.ranks):이}{_in(fact.at)} {Word(fact.how):으로} 실패했다"


@sentence.register
def _(fact: facts.AlsoFailedSo) -> str:
    return f"{ranks_text(fact.ranks):이} 같은 식으로 실패했다"


@sentence.register
def _(fact: facts.FailedLater) -> str:
    return f"{ranks_text(fact.ranks):은} {fact.after_s:.1f}초 이상 늦게 실패했다"


@sentence.register
def _(fact: facts.FailedAsConsequence) -> str:
    return f"{ranks_text(fact.ranks):은} 그 결과로 실패했을 뿐이다: 닫힌 연결이나 시간 초과"


@headline.register
def _(fact: facts.Together) -> str:
    return "; ".join(map(headline, fact.failures))


@sentence.register
def _(fact: facts.Together) -> str:
    return f"같은 때에 저마다의 이유로: {headline(fact)}"


@sentence.register
def _(fact: facts.Besides) -> str:
    return f"{'그 전에' if fact.earlier else '또한'} {headline(fact.failure)}"


@sentence.register
def _(fact: facts.ClocksMayDiffer) -> str:
    return f"{', '.join(fact.hosts)} 중 누가 먼저 실패했는지는 각자의 시계에 따른 것이고, 시계는 서로 다를 수 있다"


@sentence.register
def _(_: facts.StillConnects) -> str:
    return "아직 같은 주소로 연결을 시도한다"


@headline.register
def _(fact: facts.LeftEarly) -> str:
    last = f" (마지막으로 {place(fact.at)}에서 관측)" if fact.at is not None else ""
    data = ": 다른 랭크보다 먼저 데이터가 떨어졌다" if fact.out_of_data else ""
    return f"랭크 {Word(fact.rank):이} {doing(fact)}{last}{data}"


@doing.register
def _(fact: facts.LeftEarly) -> str:
    return (f"{after_steps(fact.steps)} " if fact.steps is not None else "") + "코드 0으로 끝났다"


@sentence.register
def _(fact: facts.LeftEarly) -> str:
    return f"랭크 {Word(fact.rank):이} {doing(fact)}; 런처가 멈춘 것이 아니다"


@sentence.register
def _(fact: facts.LeftTogether) -> str:
    return f"{headline(fact.first)}; {ranks_text(fact.others)}도 그랬다"


@sentence.register
def _(fact: facts.StillNeededBy) -> str:
    return f"{ranks_text(fact.ranks):은} 아직 이 랭크가 필요했다"


@sentence.register
def _(_: facts.LeftWhileNeeded) -> str:
    return "다른 랭크가 아직 필요로 하는데 끝났다"


@sentence.register
def _(fact: facts.NeverJoined) -> str:
    return f"이 랭크는 init_process_group을 부르지 않았다; {ranks_text(fact.joined):은} 불렀다"


@sentence.register
def _(fact: facts.LoaderEnded) -> str:
    at_end = ", 아직 끝나지 않았다" if fact.other_batches == fact.batches else ""
    return (
        f"데이터 로더가 배치 {fact.batches}개 뒤에 끝났다; "
        f"랭크 {fact.other}의 로더는 {fact.other_batches}개를 주었다{at_end}"
    )


@sentence.register
def _(fact: facts.GlooEnded) -> str:
    return f"gloo가 {ranks_text(fact.ranks):을} 끝냈다: 요청하지 않은 크기를 받았다"


@doing.register
def _(_: facts.WasAt) -> str:
    return "자기만의 호출 안에 있었다"


@sentence.register
def _(fact: facts.WasAt) -> str:
    return f"{ranks_text(fact.ranks):은} {place(fact.where)}에 있었다"


@sentence.register
def _(fact: facts.MetUnlike) -> str:
    others = "; ".join(map(sentence, fact.others))
    if fact.wrong:
        return f"{'; '.join(map(sentence, fact.wrong))}. 그동안 {others}"
    return f"랭크들이 서로 다른 집합 통신이나 크기로 만났다: {others or sentence(fact.died)}"


@sentence.register
def _(_: facts.WrongWayUnknown) -> str:
    return "그중 어느 쪽이 틀린 길을 갔는지는 알 수 없다"
