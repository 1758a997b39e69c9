"""What to change about a rank that ended."""

from __future__ import annotations

from rankscope.report.words.advice import ADVICE

ADVICE.update(
    {
        "all-ranks-join": "let every rank of the world call init_process_group, or start fewer ranks",
        "backend-for-both": "move the tensor to the GPU, or init_process_group('cpu:gloo,cuda:nccl')",
        "check-master-address": "check MASTER_ADDR and MASTER_PORT on every node: `getent hosts`, then `nc -vz "
        "HOST PORT`",
        "choose-interface": "choose the interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME); look for a firewall, "
        "and 127.0.1.1 in /etc/hosts",
        "choose-other-port": "choose another: --master-port, or --rdzv-endpoint=localhost:0 for a free one",
        "create-on-one-rank": "create it on one rank and let the others wait at a barrier, or os.makedirs(path, "
        "exist_ok=True)",
        "debug-detail": "TORCH_DISTRIBUTED_DEBUG=DETAIL names both calls",
        "debug-info": "TORCH_DISTRIBUTED_DEBUG=INFO lists the parameters",
        "destroy-group-first": "end the group and drop what uses it before the program ends: "
        "dist.destroy_process_group(), then `del` the model",
        "download-once": "download once before the job, or on one rank, and set HF_HUB_OFFLINE=1 for the others",
        "end-together": "let all ranks decide together to end (all_reduce of a flag), so that none is left waiting",
        "fewer-loader-workers": "use fewer loader workers or smaller batches",
        "find-port-owner": "find the owner of the port: `ss -ltnp`; an earlier job may have left a process",
        "find-sender": "find who sends the signal: a person, the scheduler, a time limit",
        "find-unused-parameters": "use every parameter on every rank, or "
        "DistributedDataParallel(find_unused_parameters=True)",
        "find-what-workers-wait-for": "find what the loader's workers wait for, or raise DataLoader(timeout=...)",
        "find-who-sent-signal": "find who sent the signal: a person, the scheduler (preemption, time limit), a "
        "watchdog, a container's end",
        "finish-async-work": "wait for every collective begun with async_op=True, and join threads of native "
        "libraries, before the last line",
        "free-disk": "free space, or write to another disk; keep fewer checkpoints",
        "handle-on-all-ranks": "if only one rank's data can raise it, handle it on all ranks alike, so that no "
        "rank is left waiting",
        "import-it-first": "import that library before torch and others, or name it in LD_PRELOAD",
        "install-module": "install the module into the environment of every node, and start the job with that "
        "environment's Python",
        "launch-blocking": "run again with CUDA_LAUNCH_BLOCKING=1: the error belongs to an earlier kernel of this rank",
        "load-less-memory": "use less memory: load the model on one rank or memory-mapped, smaller batches, fewer "
        "loader workers",
        "locks-on-local-disk": "keep caches and locks on a local disk, or mount with locks",
        "look-at-link": "look at the link of the peer that the message names: ibstat, cable, switch",
        "look-at-native-code": "look at the native code called there: bad pointers, wrong shapes or types, a "
        "library of another version",
        "look-for-memory-killer": "for SIGKILL look into `dmesg` and the container's memory events for the memory "
        "killer",
        "look-up-xid": "look up the Xid number, and take the GPU out if it comes again",
        "mend-each": "mend each of these errors: none of them is a consequence of another",
        "mend-error": "mend the error; the other ranks' errors are its consequence",
        "mend-error-at": "mend the error at {file}:{line}; the other ranks' errors are its consequence",
        "nccl-debug-info": "NCCL_DEBUG=INFO prints what NCCL met before it",
        "no-cuda-in-dataset": "create no CUDA tensor in the dataset, or DataLoader(multiprocessing_context='spawn')",
        "no-more-ranks-than-gpus": "start no more ranks than there are visible GPUs (CUDA_VISIBLE_DEVICES)",
        "no-workers-once": "run with num_workers=0 once: the worker's own error shows then",
        "own-gpu-each": "see that no other process uses this GPU, and that each rank uses its own "
        "(torch.load(map_location=...))",
        "raise-memory-limit": "raise the memory limit of the job or container",
        "raise-open-files": "raise the limit: `ulimit -n 65536` before the launch",
        "raise-option-memory-limit": "raise --memory-limit {limit}, or leave it out: libraries reserve more "
        "address space than they use",
        "raise-shm": "raise /dev/shm: `docker run --shm-size=8g` or --ipc=host; in Kubernetes an emptyDir of "
        "medium Memory",
        "read-table-of-gradients": "the table printed below the message names the odd rank: look for a skipped "
        "step or an out-of-memory there",
        "run-it-alone": "run it alone with the same input; PYTHONFAULTHANDLER=1 prints the Python stack, gdb the "
        "native one",
        "same-calls-at-end": "end every rank with the same calls; dist.destroy_process_group() comes last",
        "same-collectives-and-sizes": "make all ranks of a group call the same collectives in the same order, with the "
        "same sizes and dtypes",
        "same-model": "build the same model, with the same parameters in the same order, on every rank",
        "same-number-of-batches": "give every rank the same number of batches: DistributedSampler, "
        "drop_last=True, or a fixed number of steps",
        "see-output-for-end": "see the rank's output for why it ended",
        "see-why-it-ends": "see why the program ends at {file}:{line}",
        "set-device": "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective",
        "share-by-file-system": "torch.multiprocessing.set_sharing_strategy('file_system') shares tensors without "
        "keeping descriptors",
        "stop-together": "decide together when to stop (early stopping, preemption, errors): all_reduce the flag",
        "train-in-join": "or train in `with Join([model]):` (torch.distributed.algorithms.join)",
        "use-less-gpu-memory": "use less GPU memory: a smaller batch, gradient accumulation, activation "
        "checkpointing, lower precision",
        "use-less-host-memory": "use less memory on this rank: smaller batches, fewer loader workers, "
        "memory-mapped data",
        "write-and-rename": "write to a temporary name and rename it, so that nobody sees half of it",
    }
)
