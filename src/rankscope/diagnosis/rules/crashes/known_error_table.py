"""Known error texts of a rank that began it, and remarks that decide nothing."""

from __future__ import annotations

from rankscope.diagnosis.rules.crashes.known_error import Message, entry

_SHM_FIX = "raise /dev/shm: `docker run --shm-size=8g` or --ipc=host; in Kubernetes an emptyDir of medium Memory"
_FD_FIX = (
    "raise the limit: `ulimit -n 65536` before the launch",
    "torch.multiprocessing.set_sharing_strategy('file_system') shares tensors without keeping descriptors",
)
_PORT_FIX = (
    "find the owner of the port: `ss -ltnp`; an earlier job may have left a process",
    "choose another: --master-port, or --rdzv-endpoint=localhost:0 for a free one",
)
_DEVICE_FIX = (
    "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective",
    "start no more ranks than there are visible GPUs (CUDA_VISIBLE_DEVICES)",
)
_MISMATCH_FIX = (
    "make all ranks of a group call the same collectives in the same order with the same sizes and dtypes",
    "TORCH_DISTRIBUTED_DEBUG=DETAIL names both calls",
)
_CUDA_FIX = (
    "run again with CUDA_LAUNCH_BLOCKING=1: the error belongs to an earlier kernel of this rank",
    "NCCL_DEBUG=INFO prints what NCCL met before it",
)
_MEMORY_FIX = (
    "use less memory on this rank: smaller batches, fewer loader workers, memory-mapped data",
    "raise the memory limit of the job or container",
)

SPECIAL: tuple[Message, ...] = (
    entry(
        r"Tried to allocate more than 1EB",
        "a size that an aborted collective left corrupt",
        "victim",
        reference="NVIDIA/nccl#1284",
    ),
    entry(
        r"CUDA out of memory|HIP out of memory|CUDA error: out of memory",
        "the GPU's memory is full",
        "culprit",
        "out-of-memory-gpu",
        reference="modelscope/FunASR#2006",
    ),
    entry(
        r"received 0 items of ancdata|Too many open files|\[Errno 24\]",
        "the process has no free file descriptor",
        "culprit",
        "fd-exhausted",
        *_FD_FIX,
        reference="pytorch/pytorch#973",
    ),
    entry(
        r"(?s)/dev/shm.*No space left|No space left.*/dev/shm|posix_fallocate failed.*No space left"
        r"|shared memory\(shm\).*No space left|</?torch_\d+.*No space left|Error while creating shared memory segment"
        r"|workers are out of shared memory|Bus error.*shared memory",
        "shared memory (/dev/shm) is full",
        "culprit",
        "shm-exhausted",
        _SHM_FIX,
        "use fewer loader workers or smaller batches",
        reference="pytorch/pytorch#5040",
    ),
    entry(
        r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]"
        r"|inline_container\.cc.*unexpected pos \d+ vs \d+|PytorchStreamWriter failed writing",
        "the disk is full",
        "culprit",
        "disk-full",
        "free space, or write to another disk; keep fewer checkpoints",
    ),
    entry(
        r"std::bad_alloc|Cannot allocate memory|can't allocate memory|\[Errno 12\]",
        "memory of the host is used up",
        "culprit",
        "out-of-memory-host",
        *_MEMORY_FIX,
    ),
    entry(
        r"(?i)EADDRINUSE|address already in use|failed to listen on any local network address"
        r"|server socket has failed to bind",
        "the port is taken",
        "culprit",
        "port-in-use",
        *_PORT_FIX,
        reference="pytorch/pytorch#126510",
    ),
    entry(
        r"Duplicate GPU detected|invalid device ordinal",
        "ranks and GPUs do not match",
        "culprit",
        "device-mapping",
        *_DEVICE_FIX,
        reference="Peterande/D-FINE#289",
    ),
    entry(
        r"op\.preamble\.length <= op\.nbytes|Detected mismatch between collectives|collective mismatch error"
        r"|Mismatched collective detected|message truncated ?: receiving|caused by a collective mismatch around",
        "ranks met with different collectives or sizes",
        "culprit",
        "collective-mismatch",
        *_MISMATCH_FIX,
        reference="modelscope/ms-swift#9443",
    ),
    entry(
        r"has inconsistent 0 params",
        "a peer never sent the description of its model",
        "victim",
        reference="X-PLUG/mPLUG-Owl#86",
    ),
    entry(
        r"DDP expects same model across all ranks",
        "the ranks built different models",
        "culprit",
        "collective-mismatch",
        "build the same model, with the same parameters in the same order, on every rank",
    ),
    entry(
        r"gradients are inconsistent between workers",
        "the ranks' gradients differ",
        "culprit",
        "parameters-diverged",
        "the table printed below the message names the odd rank: look for a skipped step or an out-of-memory there",
        reference="facebookresearch/fairseq#1359",
    ),
    entry(
        r"Expected to have finished reduction in the prior iteration",
        "some parameters of this rank took no part in its loss",
        "culprit",
        "exception",
        "use every parameter on every rank, or DistributedDataParallel(find_unused_parameters=True)",
        "TORCH_DISTRIBUTED_DEBUG=INFO lists the parameters",
        reference="pytorch/pytorch#57776",
    ),
    entry(
        r"Cannot re-initialize CUDA in forked subprocess",
        "CUDA was used before the process was forked",
        "culprit",
        "exception",
        "create no CUDA tensor in the dataset, or DataLoader(multiprocessing_context='spawn')",
        reference="pytorch/pytorch#40403",
    ),
    entry(
        r"No backend type associated with device type",
        "a tensor of a device that the group's backend does not serve",
        "culprit",
        "exception",
        "move the tensor to the GPU, or init_process_group('cpu:gloo,cuda:nccl')",
    ),
    entry(
        r"\[Errno 37\] No locks available",
        "the file system has no file locks",
        "culprit",
        "exception",
        "keep caches and locks on a local disk, or mount with locks",
        reference="huggingface/datasets#329",
    ),
    entry(
        r"429 Client Error|Too Many Requests",
        "the hub limits the number of requests",
        "culprit",
        "exception",
        "download once before the job, or on one rank, and set HF_HUB_OFFLINE=1 for the others",
        reference="allenai/OLMo#550",
    ),
)

GENERAL: tuple[Message, ...] = (
    entry(
        r"status=12 opcode|vendor err 129|Got completion from peer",
        "an InfiniBand link fails",
        "culprit",
        "comm-error",
        "look at the link of the peer that the message names: ibstat, cable, switch",
        reference="NVIDIA/nccl#902",
    ),
    entry(
        r"Xid \(PCI|fallen off the bus",
        "the driver reports a fault of the GPU",
        "culprit",
        "comm-error",
        "look up the Xid number, and take the GPU out if it comes again",
    ),
    entry(
        r"watchdog got stuck for|Heartbeat monitor timed out|ncclSystemError|ncclUnhandledCudaError"
        r"|ncclInternalError|CUDNN_STATUS"
        r"|ncclInvalidUsage|unhandled (?:system|cuda) error|Cuda failure \d+|CUDA error|device-side assert",
        "CUDA or NCCL reports an error of this process",
        "culprit",
        "comm-error",
        *_CUDA_FIX,
    ),
    entry(
        r"OpType=ALLREDUCE, NumelIn=1, NumelOut=1\b", "the collective of one element is usually a barrier", "neutral"
    ),
    entry(
        r"Waiting in store based barrier",
        "ranks were missing at the initialisation of the group",
        "neutral",
        reference="ultralytics/yolov5#4409",
    ),
    entry(r"errno: 97 - Address family not supported", "IPv6 is off, which is usually harmless", "neutral"),
    entry(
        r"devices used by this process are currently unknown",
        "a barrier guessed the GPU: set_device is missing",
        "neutral",
        reference="pytorch/pytorch#124714",
    ),
    entry(r"closing signal SIGTERM", "the launcher stopped this process", "neutral"),
    entry(
        r"process group has NOT been destroyed", "it ended without destroy_process_group, harmless in itself", "neutral"
    ),
    entry(
        r"The current process just got forked, after parallelism has already been used",
        "tokenizers were used before a fork, which can lock up workers",
        "neutral",
        reference="huggingface/tokenizers#187",
    ),
    entry(r"Waited on lock file", "it waited for a lock file that may be left over", "neutral"),
    entry(r"No available shared memory broadcast block found", "a worker of the inference engine is stuck", "neutral"),
    entry(r"Culprit rank \d+; Error type", "torch's own analyser names a rank; it can be wrong", "neutral"),
    entry(r"method of metric .* was called before the", "a metric has no state on this rank", "neutral"),
    entry(
        r"exitcode: -9\)|exits with return code = -9",
        "a process was killed by SIGKILL, often by the memory killer",
        "neutral",
    ),
    entry(r"Out of memory: Kill|Killed process \d+", "the kernel's memory killer was at work", "neutral"),
)
