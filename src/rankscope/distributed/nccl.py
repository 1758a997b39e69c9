"""Whether NCCL works here: first each rank by itself, then all together, so that nobody waits for one that cannot."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

_POLL_S = 0.05


def why_not_nccl(local_rank: int) -> str | None:
    """The reason why this rank cannot use NCCL, found out without any other rank; None where it can."""
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available():
        return "no CUDA device is available"
    if not dist.is_nccl_available():
        return "this torch was built without NCCL"
    if local_rank >= torch.cuda.device_count():
        return f"LOCAL_RANK={local_rank} has no GPU: {torch.cuda.device_count()} are visible"
    try:
        _alone(torch.device("cuda", local_rank))
    except (RuntimeError, OSError) as error:
        return f"NCCL fails on this rank alone: {str(error).splitlines()[0]}"
    return None


def _alone(device: Any) -> None:
    """A communicator of one rank: needs the library, the driver and the device, but no peer."""
    import torch
    from torch._C._distributed_c10d import HashStore, ProcessGroupNCCL

    group: Any = ProcessGroupNCCL(HashStore(), 0, 1, ProcessGroupNCCL.Options())
    number = torch.ones(1, device=device)
    group.allreduce([number]).wait()
    torch.cuda.synchronize(device)
    group.shutdown()


def first_collective(device: Any, rank: int, world_size: int, timeout_s: float, gave_up: Any) -> str | None:
    """Sums the ranks' numbers over the default group. Returns what went wrong; None where the sum is right.

    `gave_up()` is asked meanwhile: it tells whether another rank has failed, for which this one must not wait on.
    """
    import torch
    import torch.distributed as dist

    outcome: list[str | None] = []

    def attempt() -> None:
        try:
            number = torch.tensor([float(rank + 1)], device=device)
            work = dist.all_reduce(number, async_op=True)
            work.wait(timedelta(seconds=timeout_s))
            expected = world_size * (world_size + 1) / 2
            got = number.item()
            outcome.append(None if got == expected else f"the sum is {got:g}, not {expected:g}")
        except (RuntimeError, OSError, ValueError) as error:
            outcome.append(str(error).splitlines()[0] if str(error) else type(error).__name__)

    # In a thread, because setting up NCCL's connections cannot be interrupted from within.
    thread = threading.Thread(target=attempt, name="first-collective", daemon=True)
    thread.start()
    deadline = time.monotonic() + timeout_s
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(_POLL_S)
        other = gave_up()
        if thread.is_alive() and other is not None:
            return str(other)
    return outcome[0] if outcome else f"no answer within {timeout_s:g} s"


def abandon_group() -> None:
    """Ends the default group without waiting for anybody."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if not dist.is_initialized():
        return
    abort = getattr(c10d, "_abort_process_group", None)
    if abort is not None and dist.get_backend() == "nccl":
        abort()
    else:
        dist.destroy_process_group()
