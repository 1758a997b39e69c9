"""Korean words about logs: time limits, silence, calls that torch compared."""

from __future__ import annotations

from rankscope.diagnosis.facts.logs import (
    BarrierNames,
    ComparedBeforehand,
    ComparedCall,
    ComparedCallsDiffer,
    Deed,
    DidNotCome,
    DidNotReach,
    FellSilent,
    HadEntered,
    JoinedStore,
    LastLine,
    LoggedCall,
    MasterAbsent,
    MasterHandsOutId,
    May,
    NeverFinished,
    NeverMatch,
    NotAtInit,
    OddCall,
    OnlySuffered,
    OperationsDiffer,
    PeerWentAway,
    RanIntoTimeLimit,
    StaleStore,
    Suffered,
    ToldNoTimeLimit,
    WaitedIn,
    WaitedInVain,
    WroteKnown,
)
from rankscope.report.words.ko import doing, headline, sentence
from rankscope.report.words.ko.advice import ADVICE
from rankscope.report.words.ko.meanings import MEANINGS
from rankscope.report.words.ko.particles import Word
from rankscope.report.words.ko.phrases import place, ranks_text, span, who

ADVICE.update(
    {
        "look-inside": "멈춰 있는 동안: 그 랭크의 호스트에서 `rankscope attach`, 또는 `py-spy dump --pid PID`",
        "let-torch-dump": "torch가 flight recorder 덤프를 쓰게 하고(TORCH_FR_BUFFER_SIZE=2000, "
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1) rankscope diagnose에 준다: 호출과 줄을 알려 준다",
        "run-with-rankscope": "`rankscope run`으로 작업을 시작한다: 말 없는 랭크가 무엇을 하는지 본다",
        "kernel-log": "그 호스트의 커널 로그를 본다: `dmesg -T | grep -i -E 'killed process|out of memory|xid'`",
        "read-its-log": "그 로그의 끝을 읽는다",
        "same-collectives-everywhere": "모든 랭크가 같은 집합 통신을 같은 순서로 부르게 한다: 랭크나 데이터에 따른 "
        "조건을 찾는다",
        "give-it-more-time": "큰 모델의 첫 gather처럼 오래 걸리는 것뿐이라면 시간을 더 준다: `rankscope run "
        "--comm-timeout 3600` (NCCL_TIMEOUT=3600), 또는 init_process_group(timeout=...)",
        "try-the-links": "링크만 시험한다: `rankscope check links`, NCCL_P2P_DISABLE=1, NCCL_ALGO=RING; `rankscope run "
        "--comm-debug`는 NCCL이 하는 말을 남긴다",
        "without-mixed-precision": "혼합 정밀도가 원인인지 본다: distributed.fsdp.mixed_precision=false 또는 "
        "`rankscope train --override training.use_amp=false`; FSDP(use_orig_params=True)",
        "nccl-debug-and-fp32": "`rankscope run --comm-debug --comm-timeout 3600`, 그다음 혼합 정밀도 없이 한 번"
        "(training.use_amp=false)",
        "raise-group-timeout": "한 랭크가 더 오래 일하는 곳(저장, 평가, 데이터 준비)에서는 프로세스 그룹의 timeout을 "
        "늘린다",
        "first-attempt-log": "첫 시도가 왜 실패했는지 찾는다: 그 로그는 위에 있다",
        "own-store": "시도마다 store를 따로 준다",
        "first-traceback": "첫 시도의 첫 traceback을 찾는다",
        "count-started-ranks": "랭크가 몇 개 시작되었는지 확인한다: --nproc-per-node 곱하기 --nnodes, 또는 ntasks",
        "look-before-init": "빠진 랭크들이 init_process_group 전에 무엇을 하는지 본다: 내려받기, 로거, 잠금",
        "look-before-first-collective": "랭크 0이 첫 집합 통신 전에 무엇을 하는지 본다: 내려받기, 데이터 준비, 로거",
        "log-and-kernel": "그 랭크의 로그에서 예외를, 커널 로그에서 kill을 찾는다",
        "prefix-output": "어느 랭크인지 알도록 접두사가 붙은 출력으로 시작한다(torchrun --tee 3, srun -l, 또는 "
        "rankscope run)",
        "lines-around": "그 메시지 주변의 줄을 읽는다",
        "all-logs-together": "다른 랭크와 호스트의 로그를 구해 모두 함께 rankscope diagnose에 준다",
        "who-ended-first": "모든 랭크의 로그를 모은다; 그런 메시지 없이 먼저 끝난 랭크가 시작이다",
        "after-last-line": "프로그램에서 그 마지막 줄 다음에 무엇이 오는지 본다",
        "watch-it-longer": "그 호스트에서 `rankscope attach --watch 60`: 일하는 랭크는 움직인다",
        "look-at-gpus": "그 호스트에서 `nvidia-smi`: 전력은 낮은데 100 %인 GPU는 집합 통신에서 기다린다; dmesg에서 "
        "Xid를 찾는다",
        "without-loader-workers": "데이터 로더 워커에 `py-spy dump`를 쓰거나 num_workers=0으로 해 본다",
        "look-for-locks": "`rankscope attach`가 잠금과 쥔 쪽을 알려 준다; 캐시에서 *.lock 파일을 찾는다",
        "check-the-network": "모든 노드에서 `rankscope check ddp`: MASTER_ADDR이 응답하는가?",
        "count-batches": "모든 랭크의 배치 수를 출력한다",
    }
)

_MAY: dict[Deed, str] = {
    "work": "{who:이} 아직 일하고 있을 수 있다",
    "block": "{who:이} 돌아오지 않는 호출에 서 있을 수 있다",
    "block-before-init": "{who:이} init_process_group 전의 호출에 서 있을 수 있다",
    "killed": "{who:이} 메모리 킬러에 의한 것처럼 말없이 죽었을 수 있다",
    "ended": "{who:이} 끝나서 덤프를 쓰지 않았을 수 있다",
    "failed": "예외가 {who:을} 끝냈을 수 있다",
    "failed-after-dump": "{who:이} 덤프를 쓴 뒤에 실패했을 수 있다",
    "wait": "{who:이} 다른 랭크가 들어오지 않는 집합 통신에서 기다릴 수 있다",
    "loads": "{who:이} 데이터를 기다릴 수 있다",
    "gpu": "{who}의 GPU가 커널을 끝내지 못할 수 있다",
    "skip": "{who:이} 호출을 빠뜨렸을 수 있다",
    "skip-before": "한쪽이 앞에서 호출을 빠뜨렸을 수 있다",
    "ahead": "어떤 랭크가 호출 하나만큼 앞섰을 수 있다",
    "stand-for-one-another": "이 호출들이 서로 같은 것일 수 있다",
}


@sentence.register
def _(fact: May) -> str:
    return _MAY[fact.deed].format(who=ranks_text(fact.ranks) if fact.ranks else Word("다른 랭크"))


@sentence.register
def _(fact: ComparedCall) -> str:
    call = Word(f"{fact.op} (shape [{fact.shape}])" if fact.shape else fact.op)
    if not fact.ranks:
        return call
    at = f" {place(fact.where)}에서" if fact.where is not None else ""
    return f"{ranks_text(fact.ranks):이}{at} {call:을} 불렀다"


@doing.register
def _(fact: ComparedCall) -> str:
    return f"{Word(f'{fact.op} (shape [{fact.shape}])' if fact.shape else fact.op):을} 불렀다"


@sentence.register
def _(fact: ComparedCallsDiffer) -> str:
    return "랭크들이 서로 다른 집합 통신을 불렀다: " + "; ".join(map(sentence, fact.sides))


@sentence.register
def _(fact: OddCall) -> str:
    return f"{'; '.join(map(sentence, fact.odd))}. 반면 {sentence(fact.usual)}"


@sentence.register
def _(_fact: ComparedBeforehand) -> str:
    return "torch가 호출하기 전에 서로 비교했다"


@sentence.register
def _(fact: LoggedCall) -> str:
    return _logged(fact)


def _logged(fact: LoggedCall) -> Word:
    if not fact.op:
        return Word("집합 통신")
    if fact.op == "monitoredBarrier":
        return Word("monitored barrier")
    number = f" {fact.seq}" if fact.seq is not None else ""
    barrier = " (원소 하나, 대개 barrier)" if fact.op == "ALLREDUCE" and fact.numel == 1 else ""
    return Word(f"{fact.op}{number}{barrier}")


@sentence.register
def _(fact: WaitedInVain) -> str:
    return (
        f"{ranks_text(fact.ranks):이} {_logged(fact.call)}에서 시간이 다할 때까지 기다렸다; "
        f"{ranks_text(fact.absent):은} 오지 않았다"
    )


@sentence.register
def _(fact: DidNotCome) -> str:
    return f"{_logged(fact.call)}에 오지 않았다"


@sentence.register
def _(fact: RanIntoTimeLimit) -> str:
    return f"{ranks_text(fact.ranks):이} {_logged(fact.call)}의 시간 제한에 걸렸다"


@sentence.register
def _(fact: ToldNoTimeLimit) -> str:
    return f"{ranks_text(fact.ranks):은} 시간 제한을 말하지 않는다"


@sentence.register
def _(fact: BarrierNames) -> str:
    return f"monitored barrier가 {ranks_text(fact.ranks):을} 도착하지 않은 랭크로 지목한다"


@sentence.register
def _(fact: HadEntered) -> str:
    tail = "들어가 기다렸다" if fact.waited else "들어갔고, 더 나중 것에는 들어가지 않았다"
    return f"{ranks_text(fact.ranks):은} 집합 통신 {fact.seq}에 {tail}"


@sentence.register
def _(fact: WaitedIn) -> str:
    return f"{ranks_text(fact.ranks):이} {_waited_in(fact)}"


@doing.register
def _(fact: WaitedIn) -> str:
    return _waited_in(fact)


def _waited_in(fact: WaitedIn) -> str:
    return f"원소 {fact.call.numel}개의 {fact.call.op}에서 기다렸다"


@sentence.register
def _(fact: OperationsDiffer) -> str:
    return f"집합 통신 {fact.seq}에서 랭크들이 서로 다른 호출을 했다: {'; '.join(map(sentence, fact.sides))}"


@sentence.register
def _(_fact: NeverMatch) -> str:
    return "순서의 한 지점에서 서로 다른 연산은 결코 맞지 않는다"


@sentence.register
def _(fact: LastLine) -> str:
    if fact.line is None:
        return f"랭크 {fact.rank}의 줄이 로그에 없다"
    silent = f", {span(fact.silent_s)} 동안 조용하다" if fact.silent_s is not None and fact.silent_s >= 1 else ""
    if not silent and fact.ago_s is not None:
        silent = f", 로그를 읽기 {span(fact.ago_s)} 전"
    whose = "로그" if fact.rank is None else f"랭크 {fact.rank}"
    return f"{whose}의 마지막 줄: {fact.line!r}{silent}"


@sentence.register
def _(fact: NeverFinished) -> str:
    return f"{ranks_text(fact.ranks)}, 곧 모든 랭크가 {_logged(fact.call)}에 들어갔지만 시간 제한 안에 끝나지 않았다"


@sentence.register
def _(fact: JoinedStore) -> str:
    if fact.joined > fact.world:
        return f"worker_count={fact.joined:d}가 world_size={fact.world:d}보다 크다"
    return f"랭크 {fact.world}개 중 {fact.joined}개가 들어왔다"


@sentence.register
def _(fact: StaleStore) -> str:
    return (
        f"{fact.world}개짜리 프로세스 그룹에 프로세스 {fact.joined}개가 들어왔다: store가 이전 시도의 것까지 세고 있다"
    )


@sentence.register
def _(fact: NotAtInit) -> str:
    absent = ranks_text(fact.ranks) if fact.ranks else Word(f"랭크 {fact.world}개 중 {fact.missing}개")
    return f"{absent:이} init_process_group에 이르지 못했다; 나머지는 거기서 기다린다"


@sentence.register
def _(fact: DidNotReach) -> str:
    return f"{'첫 집합 통신' if fact.call == 'first collective' else fact.call}에 이르지 못했다"


@sentence.register
def _(fact: MasterAbsent) -> str:
    return f"랭크 0이 첫 집합 통신에 이르지 못했고 {ranks_text(fact.waiting):이} 그것을 기다렸다"


@sentence.register
def _(_fact: MasterHandsOutId) -> str:
    return "랭크 0이 첫 집합 통신에서 NCCL의 id를 나눠 준다; 나머지는 헛되이 그것을 물었다"


@headline.register
def _(fact: PeerWentAway) -> str:
    return f"local rank {fact.local_rank}인 프로세스가 사라졌다; NCCL이 닫힌 연결을 알아챘다"


@sentence.register
def _(fact: PeerWentAway) -> str:
    return f"'Connection closed by localRank {fact.local_rank}'가 그것을 지목한다"


@headline.register
def _(fact: WroteKnown) -> str:
    return f"{who(fact.rank)}의 말: {MEANINGS[fact.known]}"


@sentence.register
def _(fact: WroteKnown) -> str:
    return f"{who(fact.rank):이} 썼다: {fact.line}" if fact.line else MEANINGS[fact.known]


@doing.register
def _(fact: WroteKnown) -> str:
    return MEANINGS[fact.known]


@sentence.register
def _(fact: OnlySuffered) -> str:
    whom = ranks_text(fact.ranks) if fact.ranks else Word("이 로그의 랭크들")
    return f"{whom:은} 피해를 입었을 뿐이다({MEANINGS[fact.known]}); 누가 시작했는지는 이 로그에 없다"


@sentence.register
def _(fact: Suffered) -> str:
    return f"{f'랭크 {fact.rank}' if fact.rank is not None else '어떤 랭크'}: {MEANINGS[fact.known]}"


@sentence.register
def _(fact: FellSilent) -> str:
    return (
        f"{ranks_text(fact.ranks):이} 로그가 끝나기 {span(fact.silent_s)} 전에 조용해졌다; 이유를 말하는 메시지가 없다"
    )
