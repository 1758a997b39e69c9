"""What to change where a rank stands, in Korean."""

from __future__ import annotations

from rankscope.report.words.ko.advice import ADVICE

ADVICE.update(
    {
        # A process that cannot run.
        "continue-process": "다시 돌게 한다: kill -CONT {pid}",
        "who-stops-it": "누가 멈추는지 찾는다: 디버거, Ctrl-Z, 작업을 중지시키는 스케줄러, `kill -STOP`",
        "look-at-device": "그 뒤의 장치나 파일 시스템을 살펴본다: I/O 오류는 `dmesg`, 응답하지 않는 것은 `df`",
        "cannot-be-killed": "그런 프로세스는 커널 호출이 돌아올 때까지 죽일 수 없다",
        "release-interpreter-lock": "블로킹 호출을 하는 동안 인터프리터 잠금을 놓는다: PyDLL 대신 ctypes.CDLL, "
        "`Py_BEGIN_ALLOW_THREADS`, `py::call_guard<py::gil_scoped_release>`, `with nogil:`",
        "native-time-limit": "네이티브 호출에 시간 제한을 주거나 별도 프로세스에서 한다",
        # Something outside.
        "request-timeout": "요청에 timeout을 주어, 응답하지 않는 서비스가 오류를 내게 한다",
        "send-in-background": "백그라운드 스레드에서 보내거나, 아무도 이 랭크를 기다리지 않는 곳에서만 보낸다",
        "other-end-of-pipe": "파이프 반대쪽 끝의 프로세스를 살펴본다",
        "read-time-limit": "시간 제한을 두고 읽는다",
        "file-system-answers": "파일 시스템이 응답하는지 본다: `df`, `ls`, 서버 상태, `dmesg`",
        "copy-to-local-disk": "작업 전에 데이터를 로컬 디스크로 복사한다",
        "polling-time-limit": "sleep이 무엇을 기다리는지 본다: 반복해서 확인하는 루프에는 시간 제한과 알림이 있어야 "
        "한다",
        "same-pause": "모든 랭크가 똑같이 쉬거나 아무도 쉬지 않게 한다",
        "who-makes-it-true": "누가 `{test}`를 바꿔야 하는지, 왜 그렇게 되지 않는지 본다",
        "open-pipe": "이름 있는 파이프를 열면 반대쪽 끝을 기다린다: 그쪽을 먼저 시작하거나 O_NONBLOCK으로 연다",
        "try-ls": "또는 파일 시스템이 응답하지 않는다: 거기서 `ls`를 해 본다",
        "look-at-store": "그 포트의 프로세스(대개 랭크 0)가 무엇을 하는지 본다",
        "no-keyboard": "랭크에는 키보드가 없다: input(), breakpoint(), pdb를 없앤다",
        "what-is-this-path": "{path:이} 파이프나 장치인지, 응답하지 않는 네트워크 파일 시스템에 있는지 본다",
        "await-time-limit": "await 하는 것에 시간 제한을 준다: `asyncio.wait_for(..., timeout=...)`, `async with "
        "asyncio.timeout(...)`",
        "say-pending-tasks": "제한이 지나면 `asyncio.all_tasks()`를 출력한다: 기다리는 코루틴을 알려 준다",
        "service-answers": "{label} 뒤의 서비스가 응답하는지 보고, 그 호출에 시간 제한을 준다",
        # Children and queues.
        "child-timeout": "기다림에 timeout을 주고(`subprocess.run(..., timeout=...)`) 지나면 자식을 끝낸다",
        "full-pipe": "자식이 도는 동안 그 출력을 읽는다: 파이프가 가득 차면 자식이 멈춘다(communicate()를 쓴다)",
        "lost-task": "죽은 워커를 찾는다(메모리: `dmesg`): multiprocessing.Pool은 다른 워커를 시작하고 작업은 "
        "사라진다; concurrent.futures는 대신 BrokenProcessPool을 일으킨다",
        "empty-queue": "다른 쪽이 join 하거나 끝나기 전에 큐에서 모두 꺼낸다: 아무도 읽지 않는 것은 넣은 쪽을 막는다",
        "fill-queue": "무언가를 넣어야 할 프로세스가 살아 있는지 본다; 끝날 때 마지막 항목을 넣게 한다",
        "queue-time-limit": "put과 get에 `timeout=...`을 주고, 지나면 무엇이 빠졌는지 알린다",
        # Locks.
        "mend-holder": "쥐고 있는 프로세스 {pid:을} 끝내거나 고친다",
        "find-holder": "쥐고 있는 쪽을 찾는다: `lslocks`, 또는 `fuser -v {path}`",
        "lock-without-waiting": "기다리지 않고(LOCK_NB) 또는 시간 제한을 두고 잠그고, 무엇을 기다리는지 알린다",
        "local-lock": "네트워크 파일 시스템에서는 잠금이 아예 동작하지 않을 수 있다: 잠금을 로컬 디스크에 둔다",
        "left-lock-file": "지금 거기서 빌드하거나 내려받는 프로세스가 없다면 {path:은} 죽은 프로세스가 남긴 것이다: "
        "지운다(torch extension이면 ~/.cache/torch_extensions 아래의 `lock` 파일)",
        "lock-time-limit": "잠금에 시간 제한을 준다",
        "one-writer": "한 랭크만 데이터베이스에 쓰거나 랭크마다 파일을 따로 준다; 트랜잭션을 짧게 한다",
        "database-time-limit": "짧은 `timeout=...`으로 연결한다: 그러면 sqlite3이 `database is locked`를 일으킨다",
        "hand-over-exception": "스레드가 자기 예외를 기다리는 쪽에 넘기게 한다: 큐에 넣거나 future를 쓴다",
        "release-lock": "잠긴 구간에서 나가는 모든 길이 잠금을 푸는지(`with lock:`), 모든 스레드가 한 순서로 잠그는지 "
        "본다",
        "lock-once": "잠금을 두 번 잡지 않는다: 이미 잡혀 있다고 보는 {function:을} 따로 두어 부르거나 "
        "threading.RLock()으로 바꾼다",
        "no-lock-across": "집합 통신이나 fork를 건너 잠금을 쥐지 않는다: 자식은 쥔 쪽 없이 잠금만 물려받는다",
        "wait-time-limit": "시간 제한을 두고 기다린다",
        "logging-handler": "로그 핸들러는 쓰는 동안 잠금을 쥔다: 어디에 쓰는지(파이프, 소켓, 네트워크 파일 시스템) "
        "보거나 QueueHandler로 기록한다",
        "full-queue": "큐를 비우는 스레드가 살아 있는지 본다; timeout을 두고 넣는다",
        "empty-thread-queue": "큐를 채우는 스레드가 살아 있는지 본다; 끝날 때 마지막 항목을 넣게 한다",
        "future-time-limit": "`result(timeout=...)`에 제한을 주고 executor에 빈 워커가 있는지 본다: 같은 executor의 "
        "다른 작업을 기다리는 작업은 자기 자신을 기다린다",
        # Threads.
        "thread-time-limit": "스레드가 하는 일에 시간 제한을 준다",
        "join-time-limit": "timeout을 두고 join 하고, 어느 스레드가 아직 도는지 알린다",
        "end-the-thread": "프로그램이 끝나기 전에 스레드를 끝낸다: 루프가 보는 event를 set 하고 join 한다",
        "daemon-thread": "또는 daemon=True로 시작해 프로세스를 붙잡지 않게 한다",
        "end-the-child": "프로그램이 끝나기 전에 자식에게 끝내라고 하고 join 하거나 terminate() 한다",
        "daemon-child": "또는 daemon=True로 시작해 부모와 함께 끝나게 한다",
        "cancel-join-thread": "또는 큐에 남은 것을 잃어도 된다면 cancel_join_thread()를 부른다",
        # GPU.
        "take-gpu-out": "이 GPU를 뺀다(노드 drain, nvidia-smi -q, 리셋이나 재부팅). 그리고 그것 없이 작업을 시작한다",
        "look-xid-up": "NVIDIA의 목록에서 Xid 번호를 찾아본다; 다시 나타나면 제조사가 필요하다",
        "name-the-kernel": "CUDA_LAUNCH_BLOCKING=1이나 compute-sanitizer로 다시 돌린다: 그러면 문제의 커널이 드러난다",
        "wrong-index": "대개는 틀린 인덱스(클래스 수를 넘는 레이블, 어휘를 넘는 토큰 id) 때문이다",
        # Data loader.
        "worker-time-limit": "워커의 호출이 끝나게 한다: 시간 제한을 준다",
        "loader-timeout": "DataLoader(timeout=...)은 이런 기다림을 오류로 바꾼다",
        "fork-safely": "워커가 fork되기 전에 스레드를 시작하거나 잠금을 열거나 OpenMP, OpenCV, tokenizers를 쓰지 "
        "않는다: cv2.setNumThreads(0), TOKENIZERS_PARALLELISM=false, 또는 multiprocessing_context='spawn'",
        "dead-worker": "죽은 워커를 찾는다: 메모리(`dmesg`), /dev/shm, 네이티브 코드의 충돌",
        "lost-hand-over": "워커가 큐를 쥔 채 죽으면 전달이 사라질 수 있다: 작업을 다시 시작한다",
        # Work.
        "compile-first": "첫 집합 통신 전에 시간 제한을 두고 컴파일하거나, 컴파일 캐시를 랭크끼리 공유한다",
        "timeout-for-first-steps": "처음 몇 스텝 동안 프로세스 그룹의 timeout을 늘린다",
        "save-together": "모든 랭크로(torch.distributed.checkpoint) 또는 비동기로 저장한다",
        "timeout-above": "프로세스 그룹의 timeout을 {what}에 걸리는 시간보다 길게 한다",
        "prepare-before": "작업 전에 데이터를 준비해 랭크는 읽기만 하게 한다",
        "local-environment": "느리거나 공유된 파일 시스템에서 import 한다: 환경을 로컬 디스크에 둔다",
        "let-it-work": "일하게 둔다: 살아 있다. 이 구간이 원래 길다면 프로세스 그룹의 timeout을 늘린다",
        "split-the-work": "일을 랭크끼리 나누거나 첫 집합 통신 전에 한다",
        "bound-the-loop": "{line}번 줄의 루프가 왜 끝나지 않는지 본다; 한계를 두고 넘으면 예외를 일으킨다",
        "look-again": "1분 뒤 다시 본다(`py-spy dump`): 변수와 줄이 바뀌지 않으면 무한 루프다",
        # Stalled.
        "time-limit-there": "이 줄이 무엇을 부르는지 보고 시간 제한을 준다",
        "native-stacks": "네이티브 스택이 더 말해 준다: py-spy dump --native --pid {pid}",
    }
)
