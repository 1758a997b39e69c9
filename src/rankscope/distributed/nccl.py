"""Whether NCCL works here: first each rank by itself, then all together, so that nobody waits for one that cannot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Problem:
    """What kept a group from proving itself."""

    made: bool
    """The group was made; its first collective is what failed."""
    text: str


def prove_group(
    form: Callable[[], None],
    device: Any,
    rank: int,
    world_size: int,
    timeout_s: float,
    *,
    gave_up: Callable[[], str | None] | None = None,
    on_error: Callable[[], None] = lambda: None,
) -> Problem | None:
    """Makes the default group with `form` and sums the ranks' numbers over it; None where the sum is right.

    `gave_up`, if given, is asked meanwhile: it tells whether another rank has failed, for which this one must not
    wait on.
    `on_error` is called while an error is being handled.
    """
    made = threading.Event()
    outcome: list[str | None] = []

    def attempt() -> None:
        import torch
        import torch.distributed as dist

        try:
            form()
            made.set()
            number = torch.tensor([float(rank + 1)], device=device)
            dist.all_reduce(number, async_op=True).wait(timedelta(seconds=timeout_s))
            expected = world_size * (world_size + 1) / 2
            got = number.item()
            outcome.append(None if got == expected else f"the sum is {got:g}, not {expected:g}")
        except (RuntimeError, OSError, ValueError) as error:
            on_error()
            outcome.append(str(error).splitlines()[0] if str(error) else type(error).__name__)

    # In a thread, because neither making a group nor connecting it can be interrupted from within.
    thread = threading.Thread(target=attempt, name="first-collective", daemon=True)
    thread.start()
    deadline = time.monotonic() + timeout_s
    if gave_up is None:
        thread.join(timeout_s)
    while gave_up is not None and thread.is_alive() and time.monotonic() < deadline:
        thread.join(_POLL_S)
        other = gave_up() if thread.is_alive() else None
        if other is not None:
            return Problem(made.is_set(), other)
    if not outcome:
        return Problem(made.is_set(), f"no answer within {timeout_s:g} s")
    return None if outcome[0] is None else Problem(made.is_set(), outcome[0])


def abandon_group() -> None:
    """Ends the default group without waiting for anybody."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if not dist.is_initialized():
        # Names of groups are counted; ranks that came further than others must count from the same number again.
        world: Any = c10d._world
        world.group_count = 0
        return
    abort = getattr(c10d, "_abort_process_group", None)
    if abort is not None and dist.get_backend() == "nccl":
        abort()
    else:
        dist.destroy_process_group()
