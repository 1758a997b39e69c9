"""Known error texts of a rank that began it, and remarks that decide nothing."""

from __future__ import annotations

from rankscope.diagnosis.rules.crashes.known_error import KnownError, entry

_CUDA_FIX = ("launch-blocking", "nccl-debug-info")
_MEMORY_FIX = ("use-less-host-memory", "raise-memory-limit")

SPECIAL: tuple[KnownError, ...] = (
    entry(
        "absurd-size",
        r"Tried to allocate more than 1EB",
        "victim",
        reference="NVIDIA/nccl#1284",
    ),
    entry(
        "gpu-memory-full",
        r"CUDA out of memory|HIP out of memory|CUDA error: out of memory",
        "culprit",
        "out-of-memory-gpu",
        reference="modelscope/FunASR#2006",
    ),
    entry(
        "device-assertion",
        r"device-side assert",
        "culprit",
        "exception",
        "launch-blocking",
        "wrong-index",
    ),
    entry(
        "no-descriptor",
        r"received 0 items of ancdata|Too many open files|\[Errno 24\]",
        "culprit",
        "fd-exhausted",
        "raise-open-files",
        "share-by-file-system",
        reference="pytorch/pytorch#973",
    ),
    entry(
        "shared-memory-full",
        r"(?s)/dev/shm.*No space left|No space left.*/dev/shm|posix_fallocate failed.*No space left"
        r"|shared memory\(shm\).*No space left|</?torch_\d+.*No space left|Error while creating shared memory segment"
        r"|workers are out of shared memory|Bus error.*shared memory",
        "culprit",
        "shm-exhausted",
        "raise-shm",
        "fewer-loader-workers",
        reference="pytorch/pytorch#5040",
    ),
    entry(
        "disk-full",
        r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]"
        r"|inline_container\.cc.*unexpected pos \d+ vs \d+|PytorchStreamWriter failed writing",
        "culprit",
        "disk-full",
        "free-disk",
    ),
    entry(
        "static-tls-full",
        r"cannot allocate memory in static TLS block",
        "culprit",
        "out-of-memory-host",
        "import-it-first",
        reference="pytorch/pytorch#2575",
    ),
    entry(
        "library-not-mapped",
        r"failed to map segment from shared object(?!.*(?:Operation not permitted|Permission denied))",
        "culprit",
        "out-of-memory-host",
        *_MEMORY_FIX,
    ),
    entry(
        "host-memory-full",
        r"std::bad_alloc|[Cc]annot allocate memory|can't allocate memory|\[Errno 12\]",
        "culprit",
        "out-of-memory-host",
        *_MEMORY_FIX,
    ),
    entry(
        "port-taken",
        r"(?i)EADDRINUSE|address already in use|failed to listen on any local network address"
        r"|server socket has failed to bind",
        "culprit",
        "port-in-use",
        "find-port-owner",
        "choose-other-port",
        reference="pytorch/pytorch#126510",
    ),
    entry(
        "wrong-device",
        r"Duplicate GPU detected|invalid device ordinal",
        "culprit",
        "device-mapping",
        "set-device",
        "no-more-ranks-than-gpus",
        reference="Peterande/D-FINE#289",
    ),
    entry(
        "different-collectives",
        r"op\.preamble\.length <= op\.nbytes|Detected mismatch between collectives|collective mismatch error"
        r"|Mismatched collective detected|message truncated ?: receiving|caused by a collective mismatch around",
        "culprit",
        "collective-mismatch",
        "same-collectives-and-sizes",
        "debug-detail",
        reference="modelscope/ms-swift#9443",
    ),
    entry(
        "no-model-from-peer",
        r"has inconsistent 0 params",
        "victim",
        reference="X-PLUG/mPLUG-Owl#86",
    ),
    entry(
        "different-models",
        r"DDP expects same model across all ranks",
        "culprit",
        "collective-mismatch",
        "same-model",
    ),
    entry(
        "different-gradients",
        r"gradients are inconsistent between workers",
        "culprit",
        "parameters-diverged",
        "read-table-of-gradients",
        reference="facebookresearch/fairseq#1359",
    ),
    entry(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        "culprit",
        "exception",
        "find-unused-parameters",
        "debug-info",
        reference="pytorch/pytorch#57776",
    ),
    entry(
        "cuda-after-fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "culprit",
        "exception",
        "no-cuda-in-dataset",
        reference="pytorch/pytorch#40403",
    ),
    entry(
        "no-backend-for-device",
        r"No backend type associated with device type",
        "culprit",
        "exception",
        "backend-for-both",
    ),
    entry(
        "no-file-locks",
        r"\[Errno 37\] No locks available",
        "culprit",
        "exception",
        "locks-on-local-disk",
        reference="huggingface/datasets#329",
    ),
    entry(
        "too-many-requests",
        r"429 Client Error|Too Many Requests",
        "culprit",
        "exception",
        "download-once",
        reference="allenai/OLMo#550",
    ),
)

GENERAL: tuple[KnownError, ...] = (
    entry(
        "infiniband-link",
        r"status=12 opcode|vendor err 129|Got completion from peer",
        "culprit",
        "comm-error",
        "look-at-link",
        reference="NVIDIA/nccl#902",
    ),
    entry(
        "gpu-fault",
        r"Xid \(PCI|fallen off the bus",
        "culprit",
        "comm-error",
        "look-up-xid",
    ),
    entry(
        "cuda-or-nccl-error",
        r"watchdog got stuck for|Heartbeat monitor timed out|ncclSystemError|ncclUnhandledCudaError"
        r"|ncclInternalError|CUDNN_STATUS"
        r"|ncclInvalidUsage|unhandled (?:system|cuda) error|Cuda failure \d+|CUDA error",
        "culprit",
        "comm-error",
        *_CUDA_FIX,
    ),
    entry(
        "one-element",
        r"OpType=ALLREDUCE, NumelIn=1, NumelOut=1\b",
        "neutral",
    ),
    entry(
        "waits-in-store-barrier",
        r"Waiting in store based barrier",
        "neutral",
        reference="ultralytics/yolov5#4409",
    ),
    entry("no-ipv6", r"errno: 97 - Address family not supported", "neutral"),
    entry(
        "guessed-device",
        r"devices used by this process are currently unknown",
        "neutral",
        reference="pytorch/pytorch#124714",
    ),
    entry("stopped-by-launcher", r"closing signal SIGTERM", "neutral"),
    entry(
        "group-not-destroyed",
        r"process group has NOT been destroyed",
        "neutral",
    ),
    entry(
        "tokenizers-forked",
        r"The current process just got forked, after parallelism has already been used",
        "neutral",
        reference="huggingface/tokenizers#187",
    ),
    entry("waited-on-lock-file", r"Waited on lock file", "neutral"),
    entry(
        "inference-worker-stuck",
        r"No available shared memory broadcast block found",
        "neutral",
    ),
    entry(
        "torch-names-a-rank",
        r"Culprit rank \d+; Error type",
        "neutral",
    ),
    entry(
        "metric-without-state",
        r"method of metric .* was called before the",
        "neutral",
    ),
    entry(
        "killed-by-sigkill",
        r"exitcode: -9\)|exits with return code = -9",
        "neutral",
    ),
    entry(
        "memory-killer",
        r"Out of memory: Kill|Killed process \d+",
        "neutral",
    ),
)
