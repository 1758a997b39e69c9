"""What to change about a rank that ended, in Korean."""

from __future__ import annotations

from rankscope.report.words.ko.advice import ADVICE

ADVICE.update(
    {
        "all-ranks-join": "world의 모든 랭크가 init_process_group을 부르게 하거나, 더 적은 랭크를 시작한다",
        "backend-for-both": "텐서를 GPU로 옮기거나 init_process_group('cpu:gloo,cuda:nccl')을 쓴다",
        "check-master-address": "모든 노드에서 MASTER_ADDR과 MASTER_PORT를 확인한다: `getent hosts`, 그다음 `nc -vz "
        "HOST PORT`",
        "choose-interface": "인터페이스를 고른다(GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME); 방화벽과 /etc/hosts의 "
        "127.0.1.1을 살펴본다",
        "choose-other-port": "다른 포트를 고른다: --master-port, 또는 빈 포트를 쓰려면 --rdzv-endpoint=localhost:0",
        "create-on-one-rank": "한 랭크에서 만들고 나머지는 barrier에서 기다리게 하거나, os.makedirs(path, "
        "exist_ok=True)를 쓴다",
        "debug-detail": "TORCH_DISTRIBUTED_DEBUG=DETAIL이 두 호출을 모두 알려 준다",
        "debug-info": "TORCH_DISTRIBUTED_DEBUG=INFO가 파라미터를 나열한다",
        "destroy-group-first": "프로그램이 끝나기 전에 그룹을 끝내고 그것을 쓰는 것을 버린다: "
        "dist.destroy_process_group(), 그다음 모델을 `del` 한다",
        "download-once": "작업 전에 한 번, 또는 한 랭크에서 내려받고 나머지에는 HF_HUB_OFFLINE=1을 준다",
        "end-together": "끝낼지를 모든 랭크가 함께 정해(플래그의 all_reduce) 아무도 기다리며 남지 않게 한다",
        "fewer-loader-workers": "로더 워커를 줄이거나 배치를 작게 한다",
        "find-port-owner": "포트의 주인을 찾는다: `ss -ltnp`; 이전 작업이 프로세스를 남겼을 수 있다",
        "find-sender": "누가 시그널을 보내는지 찾는다: 사람, 스케줄러, 시간 제한",
        "find-unused-parameters": "모든 랭크에서 모든 파라미터를 쓰거나 "
        "DistributedDataParallel(find_unused_parameters=True)를 쓴다",
        "find-what-workers-wait-for": "로더의 워커가 무엇을 기다리는지 찾거나 DataLoader(timeout=...)을 늘린다",
        "find-who-sent-signal": "누가 시그널을 보냈는지 찾는다: 사람, 스케줄러(선점, 시간 제한), 워치독, 컨테이너의 "
        "종료",
        "finish-async-work": "마지막 줄 전에 async_op=True로 시작한 모든 집합 통신을 기다리고 네이티브 라이브러리의 "
        "스레드를 join 한다",
        "free-disk": "공간을 비우거나 다른 디스크에 쓴다; 체크포인트를 덜 남긴다",
        "handle-on-all-ranks": "한 랭크의 데이터만 이를 일으킬 수 있다면 모든 랭크에서 똑같이 처리해 아무도 기다리며 "
        "남지 않게 한다",
        "import-it-first": "그 라이브러리를 torch 등보다 먼저 import 하거나 LD_PRELOAD에 적는다",
        "install-module": "모든 노드의 환경에 모듈을 설치하고, 그 환경의 Python으로 작업을 시작한다",
        "launch-blocking": "CUDA_LAUNCH_BLOCKING=1로 다시 돌린다: 오류는 이 랭크의 앞선 커널에 속한다",
        "load-less-memory": "메모리를 덜 쓴다: 모델을 한 랭크에서 또는 memory map으로 읽고, 배치를 작게, 로더 워커를 "
        "적게 한다",
        "locks-on-local-disk": "캐시와 잠금을 로컬 디스크에 두거나, 잠금을 켜고 마운트한다",
        "look-at-link": "메시지가 가리키는 상대의 링크를 살펴본다: ibstat, 케이블, 스위치",
        "look-at-native-code": "거기서 부른 네이티브 코드를 살펴본다: 잘못된 포인터, 틀린 shape이나 타입, 버전이 다른 "
        "라이브러리",
        "look-for-memory-killer": "SIGKILL이면 `dmesg`와 컨테이너의 메모리 이벤트에서 메모리 킬러를 찾는다",
        "look-up-xid": "Xid 번호를 찾아보고, 다시 나타나면 그 GPU를 뺀다",
        "mend-each": "이 오류들을 하나씩 고친다: 어느 것도 다른 것의 결과가 아니다",
        "mend-error": "이 오류를 고친다. 다른 랭크의 오류는 그 결과다",
        "mend-error-at": "{file}:{line}의 오류를 고친다. 다른 랭크의 오류는 그 결과다",
        "nccl-debug-info": "NCCL_DEBUG=INFO가 그 전에 NCCL이 만난 것을 출력한다",
        "no-cuda-in-dataset": "dataset에서 CUDA 텐서를 만들지 않거나 DataLoader(multiprocessing_context='spawn')을 "
        "쓴다",
        "no-more-ranks-than-gpus": "보이는 GPU(CUDA_VISIBLE_DEVICES)보다 많은 랭크를 시작하지 않는다",
        "no-workers-once": "한 번 num_workers=0으로 돌려 본다: 워커 자신의 오류가 드러난다",
        "own-gpu-each": "다른 프로세스가 이 GPU를 쓰지 않는지, 랭크마다 자기 GPU를 쓰는지 본다"
        "(torch.load(map_location=...))",
        "raise-memory-limit": "작업이나 컨테이너의 메모리 제한을 늘린다",
        "raise-open-files": "제한을 늘린다: 시작하기 전에 `ulimit -n 65536`",
        "raise-option-memory-limit": "--memory-limit {limit}보다 늘리거나 빼 버린다: 라이브러리는 쓰는 것보다 많은 "
        "주소 공간을 예약한다",
        "raise-shm": "/dev/shm을 늘린다: `docker run --shm-size=8g` 또는 --ipc=host; Kubernetes에서는 medium이 "
        "Memory인 emptyDir",
        "read-table-of-gradients": "메시지 아래 출력된 표가 다른 랭크를 알려 준다: 거기서 건너뛴 스텝이나 메모리 "
        "부족을 찾는다",
        "run-it-alone": "같은 입력으로 그것만 돌려 본다; PYTHONFAULTHANDLER=1은 Python 스택을, gdb는 네이티브 스택을 "
        "출력한다",
        "same-calls-at-end": "모든 랭크를 같은 호출로 끝낸다; dist.destroy_process_group()이 마지막이다",
        "same-collectives-and-sizes": "그룹의 모든 랭크가 같은 집합 통신을 같은 순서, 같은 크기와 dtype으로 부르게 "
        "한다",
        "same-model": "모든 랭크에서 같은 파라미터를 같은 순서로 가진 같은 모델을 만든다",
        "same-number-of-batches": "모든 랭크에 같은 수의 배치를 준다: DistributedSampler, drop_last=True, 또는 고정된 "
        "스텝 수",
        "see-output-for-end": "왜 끝났는지 그 랭크의 출력을 본다",
        "see-why-it-ends": "프로그램이 왜 {file}:{line}에서 끝나는지 본다",
        "set-device": "첫 집합 통신 전에 torch.cuda.set_device(int(os.environ['LOCAL_RANK']))를 부른다",
        "share-by-file-system": "torch.multiprocessing.set_sharing_strategy('file_system')은 디스크립터를 쥐지 않고 "
        "텐서를 공유한다",
        "stop-together": "언제 멈출지(조기 종료, 선점, 오류) 함께 정한다: 플래그를 all_reduce 한다",
        "train-in-join": "또는 `with Join([model]):` 안에서 학습한다(torch.distributed.algorithms.join)",
        "use-less-gpu-memory": "GPU 메모리를 덜 쓴다: 작은 배치, 그래디언트 누적, activation checkpointing, 낮은 "
        "정밀도",
        "use-less-host-memory": "이 랭크의 메모리를 덜 쓴다: 작은 배치, 적은 로더 워커, memory map된 데이터",
        "write-and-rename": "임시 이름으로 쓰고 이름을 바꿔, 아무도 절반만 쓰인 것을 보지 않게 한다",
    }
)
