"""What known error texts mean, in Korean: by their names in the table of known errors."""

from __future__ import annotations

from rankscope.diagnosis.rules.crashes.known_errors import KNOWN_ERRORS

MEANINGS = {
    "absurd-size": "중단된 집합 통신이 망가뜨린 크기 값이다",
    "gpu-memory-full": "GPU 메모리가 가득 찼다",
    "device-assertion": "프로그램의 커널에서 assert가 실패했다. 대개 텐서 밖을 가리키는 인덱스 때문이다",
    "no-descriptor": "프로세스에 남은 파일 디스크립터가 없다",
    "shared-memory-full": "공유 메모리(/dev/shm)가 가득 찼다",
    "disk-full": "디스크가 가득 찼다",
    "static-tls-full": "로더에 이 라이브러리의 스레드 지역 데이터를 둘 자리가 없다",
    "library-not-mapped": "라이브러리를 올릴 주소 공간이 남지 않았다",
    "host-memory-full": "호스트 메모리를 다 썼다",
    "port-taken": "포트가 이미 쓰이고 있다",
    "wrong-device": "랭크와 GPU가 맞지 않는다",
    "different-collectives": "랭크들이 서로 다른 집합 통신이나 크기로 만났다",
    "no-model-from-peer": "상대가 모델의 구성을 보내지 않았다",
    "different-models": "랭크들이 서로 다른 모델을 만들었다",
    "different-gradients": "랭크들의 그래디언트가 서로 다르다",
    "unused-parameters": "이 랭크의 일부 파라미터가 loss에 쓰이지 않았다",
    "cuda-after-fork": "프로세스가 fork되기 전에 CUDA가 쓰였다",
    "no-backend-for-device": "그룹의 백엔드가 다루지 않는 장치의 텐서다",
    "no-file-locks": "파일 시스템이 파일 잠금을 지원하지 않는다",
    "too-many-requests": "허브가 요청 수를 제한한다",
    "infiniband-link": "InfiniBand 링크에 장애가 있다",
    "gpu-fault": "드라이버가 GPU 장애를 알린다",
    "cuda-or-nccl-error": "CUDA나 NCCL이 이 프로세스의 오류를 알린다",
    "one-element": "원소 하나짜리 집합 통신은 대개 barrier다",
    "waits-in-store-barrier": "그룹을 초기화할 때 빠진 랭크가 있었다",
    "no-ipv6": "IPv6이 꺼져 있다. 대개 해롭지 않다",
    "guessed-device": "barrier가 GPU를 짐작했다: set_device가 빠졌다",
    "stopped-by-launcher": "런처가 이 프로세스를 멈췄다",
    "group-not-destroyed": "destroy_process_group 없이 끝났다. 그 자체는 해롭지 않다",
    "tokenizers-forked": "fork 전에 tokenizers가 쓰였다. 워커가 멈춰 설 수 있다",
    "waited-on-lock-file": "남겨진 것일 수 있는 잠금 파일을 기다렸다",
    "inference-worker-stuck": "추론 엔진의 워커가 멈춰 있다",
    "torch-names-a-rank": "torch의 자체 분석기가 랭크를 지목한다. 틀릴 수 있다",
    "metric-without-state": "이 랭크의 메트릭에 상태가 없다",
    "killed-by-sigkill": "프로세스가 SIGKILL로 죽었다. 메모리 킬러일 때가 많다",
    "memory-killer": "커널의 메모리 킬러가 작동했다",
    "collective-timeout": "집합 통신에서 시간 제한까지 기다렸다",
    "nccl-aborted": "다른 프로세스 때문에 NCCL이 중단되었다",
    "local-rank-died": "같은 머신의 프로세스가 죽었다",
    "monitored-barrier": "monitored barrier에서 다른 랭크를 기다렸다",
    "name-not-resolved": "마스터 호스트의 이름이 풀리지 않는다",
    "master-does-not-answer": "마스터의 주소가 응답하지 않는다",
    "connection-closed": "상대 프로세스가 끝나 연결이 닫혔다",
    "peer-timeout": "상대를 시간 제한까지 기다렸다",
    "pair-closed": "다른 연산이 먼저 시간 초과되었다",
    "store-timeout": "store에서 다른 랭크를 기다렸다",
    "socket-timeout": "상대를 시간 제한까지 기다렸다",
    "peers-unreachable": "랭크들의 주소가 서로 닿지 않는다",
}
_BY_TEXT = {known.meaning: MEANINGS[name] for name, known in KNOWN_ERRORS.items() if name in MEANINGS}


def meaning(text: str) -> str:
    """The same for a fact that holds the table's text itself."""
    return _BY_TEXT.get(text, text)
