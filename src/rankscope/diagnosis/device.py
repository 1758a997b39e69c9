"""A rank and its GPU: whether it only waits for it, and whether the GPU does anything meanwhile."""

from __future__ import annotations

from rankscope.diagnosis import views
from rankscope.evidence.model import Evidence, Frame, Gpu, RankEvidence, StackSample, Thread

_WAITS = (
    *("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuMemcpy", "cuMemset", "cuLaunchKernel"),
    *("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "cudaLaunchKernel"),
    *("cuStreamWait", "cuGraphLaunch", "cudaGraphLaunch", "ncclStrongStreamSynchronize"),
)
"""Calls of the driver that spin until the GPU has come so far; a launch does so once its queue is full."""
_BACKWARD = "autograd::Engine"


def device_wait(seen: RankEvidence) -> str | None:
    """The call in which the rank waits for its GPU, by its newest native stack: `cuStreamSynchronize`.

    The processor time that it uses there is no progress.
    """
    sample = next((sample for sample in reversed(seen.stacks) if _is_native(sample)), None)
    main = views.main_thread(sample) if sample is not None else None
    if sample is None or main is None:
        return None
    own = _wait_in(main)
    if own is not None or not any(_BACKWARD in frame.function for frame in main.frames):
        return own
    # A backward pass runs in autograd's own thread, while the main one waits for it.
    found = (_wait_in(thread) for thread in sample.threads if thread is not main)
    return next((call for call in found if call is not None), None)


def stands_in_device_wait(seen: RankEvidence) -> bool:
    return device_wait(seen) is not None and views.same_stack(seen) is not False


def own_gpu(seen: RankEvidence, evidence: Evidence) -> Gpu | None:
    """The GPU of the rank: by the driver's list of processes, by NCCL's word, or because the machine has no other."""
    host = next((host for host in evidence.hosts if host.host == seen.host), None)
    if host is None:
        return None
    pids = {seen.pid, *(child.pid for child in seen.children)}
    listed = next((gpu for gpu in host.gpus if pids & set(gpu.pids)), None)
    if listed is not None:
        return listed
    told = {
        member.gpu
        for look in host.ras
        for comm in look.communicators
        for member in comm.members
        if member.pid == seen.pid
    }
    named = next((gpu for gpu in host.gpus if gpu.index in told), None)
    return named or (host.gpus[0] if len(host.gpus) == 1 else None)


def device_works(seen: RankEvidence, evidence: Evidence) -> bool | None:
    """Whether the rank's GPU did real work during the look; None where nobody can tell, as where another job's
    processes use it too."""
    gpu = own_gpu(seen, evidence)
    if gpu is None or gpu.work is None:
        return None
    works = gpu.work.working()
    ours = {pid for rank in evidence.ranks for pid in (rank.pid, *(child.pid for child in rank.children))}
    strangers = set(gpu.pids) - ours if set(gpu.pids) & ours else set()
    return None if works and strangers else works


def _is_native(sample: StackSample) -> bool:
    return any(frame.native for thread in sample.threads for frame in thread.frames)


def _wait_in(thread: Thread) -> str | None:
    for frame in _native_top(thread.frames):
        if frame.function.startswith(_WAITS):
            return frame.function.partition("(")[0]
    return None


def _native_top(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """What lies on top of the innermost line of Python."""
    for place, frame in enumerate(frames):
        if not frame.native:
            return frames[:place]
    return frames
