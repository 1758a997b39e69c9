"""Known error texts: which make a victim, and which decide a special cause."""

from __future__ import annotations

import factories as make
import pytest
from ended_ranks import ALL_REDUCE, CLOSED, GLOO, RESET, TIMED_OUT, WATCHDOG, failed, origin, victim

from rankscope.diagnosis.rules.crashes.endings import explain_endings
from rankscope.diagnosis.rules.crashes.known_errors import neutral_errors, recognise
from rankscope.report.words.advice import advise

STORE_ERROR = "torch.distributed.DistStoreError"
NETWORK_ERROR = "torch.distributed.DistNetworkError"
NCCL_ERROR = "torch.distributed.DistBackendError"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RuntimeError", CLOSED),
        ("RuntimeError", RESET),
        ("RuntimeError", TIMED_OUT),
        ("RuntimeError", f"{GLOO}pair.cc:150] Application timeout caused pair closure"),
        ("RuntimeError", f"[Rank 0]: Rank 1 failed to pass monitoredBarrier in 6000 ms\n {TIMED_OUT}"),
        ("RuntimeError", "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0"),
        (STORE_ERROR, "wait timeout after 6000ms, keys: /default_pg/0//nokey"),
        (NETWORK_ERROR, "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or "
        "crash?"),
        (NETWORK_ERROR, "recvValue failed on SocketImpl(fd=3): Connection reset by peer"),
        (NCCL_ERROR, "NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error, "
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely."),
        (NCCL_ERROR, "NCCL communicator was aborted on rank 1. Original reason for failure was: watchdog"),
        (NCCL_ERROR, "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by key '0', but store->get('0') got error: Socket Timeout"),
        ("RuntimeError", WATCHDOG),
        ("RuntimeError", "NCCL error: unhandled system error, ncclSystemError: Last error: socketProgress: Connection "
        "closed by remote peer node-2"),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate more than 1EB memory."),
    ],
)  # fmt: skip
def test_words_of_a_consequence_make_a_victim(kind: str, message: str) -> None:
    endings = explain_endings(make.evidence(failed(0, kind, message, ALL_REDUCE), failed(1, "ValueError", "bad")))
    assert endings.victims == (0,)
    assert endings.origin is not None
    assert endings.origin.culprits[0].rank == 1


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("MemoryError", "", "out-of-memory-host"),
        ("numpy._core._exceptions._ArrayMemoryError", "Unable to allocate 9 GiB", "out-of-memory-host"),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried "
         "to allocate 4 bytes. Error code 12 (Cannot allocate memory)", "out-of-memory-host"),
        ("OSError", "[Errno 12] Cannot allocate memory", "out-of-memory-host"),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "out-of-memory-gpu"),
        ("RuntimeError", "CUDA out of memory. Tried to allocate 2.00 GiB", "out-of-memory-gpu"),
        ("ModuleNotFoundError", "No module named 'wandb'", "import-failed"),
        ("ImportError", "cannot import name 'x' from 'y'", "import-failed"),
        ("OSError", "[Errno 28] No space left on device: '/data/ckpt.pt'", "disk-full"),
        ("OSError", "[Errno 28] No space left on device: '/dev/shm/torch_1'", "shm-exhausted"),
        ("RuntimeError", "unable to allocate shared memory(shm) for file </torch_1>: No space left", "shm-exhausted"),
        ("OSError", "[Errno 24] Too many open files: 'x'", "fd-exhausted"),
        ("RuntimeError", "received 0 items of ancdata", "fd-exhausted"),
        (NETWORK_ERROR, "The server socket has failed to listen on any local network address. port: "
         "29760, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", "port-in-use"),
        (NCCL_ERROR, "ncclInvalidUsage: Last error: Duplicate GPU detected : rank 0 and rank 1 both "
         "on CUDA device 2000", "device-mapping"),
        ("RuntimeError", "CUDA error: invalid device ordinal", "device-mapping"),
        ("RuntimeError", "CUDA error: device-side assert triggered", "exception"),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", "comm-error"),
        (NCCL_ERROR, "ncclUnhandledCudaError: Call to CUDA function failed.", "comm-error"),
        ("RuntimeError", "Detected mismatch between collectives on ranks. Rank 0 is running", "collective-mismatch"),
        ("RuntimeError", "Expected to have finished reduction in the prior iteration before", "exception"),
        ("ValueError", "anything else", "exception"),
    ],
)  # fmt: skip
def test_the_special_cause_beats_the_plain_exception(kind: str, message: str, cause: str) -> None:
    finding = origin(failed(0, kind, message), victim(1))
    assert finding.cause == cause
    assert finding.culprits[0].where is not None
    assert finding.culprits[0].where.line == 10
    assert finding.fix
    if cause != "exception":
        assert "exception" in [each.cause for each in finding.alternatives]


def test_unused_parameters_get_their_own_fix() -> None:
    finding = origin(failed(0, "RuntimeError", "Expected to have finished reduction in the prior iteration"))
    assert "find_unused_parameters" in advise(finding.fix[0])


def test_texts_that_decide_nothing_are_told_apart() -> None:
    assert [known.name for known in neutral_errors([WATCHDOG])] == ["one-element"]
    assert recognise("nothing of the kind") is None
