"""`check ddp`: do ranks find each other, and do all collectives bring the right values?

Six numbered steps, from one process or many: `rankscope check ddp`, or on any launcher
`torchrun --nproc-per-node 4 -m rankscope.checks.ddp`, or alone `python -m rankscope.checks.ddp`.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from rankscope.checks.model import Findings, Flaw
from rankscope.checks.team import as_rank, own_limit, run_team, standing_in
from rankscope.checks.world import CheckFailed, Place, World, clock_flaws, join, leave, place_of

LIMIT_S = 30.0
_SHOWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")
_SHOWN_PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_")


def check_ddp(
    ranks: int, environment: Mapping[str, str], limit_s: float = LIMIT_S, most_s: float | None = None
) -> Findings:
    return run_team("rankscope.checks.ddp", ranks, limit_s, environment, most_s)


def main() -> Findings:
    """One rank's part."""
    begun = time.monotonic()
    place = _step(1, "environment", os.environ.get("RANK", "0"), _environment)
    _step(2, "versions", place.rank, lambda: _versions(place))
    world, backend = _step(3, f"joining a world of {place.world_size}", place.rank, lambda: _join(place))
    clocks = clock_flaws(world)
    device = _step(4, "device", place.rank, lambda: _device(place, backend))
    tried = _step(5, "collectives", place.rank, lambda: _collectives(place, backend, device))
    _step(6, "barrier and clean-up", place.rank, lambda: _clean_up(world))
    _say(place.rank, f"all six steps passed in {time.monotonic() - begun:.1f} s")
    facts = (*clocks.facts, f"{backend}, {place.world_size} ranks: {', '.join(tried)} bring the right values")
    return Findings(flaws=clocks.flaws, facts=facts if place.rank == 0 else ())


def _step(number: int, name: str, rank: int | str, work: Callable[[], Any]) -> Any:
    standing_in(f"step {number} ({name})", rank)
    _say(rank, f"STEP {number} of 6: {name}")
    return work()


def _say(rank: int | str, text: str) -> None:
    print(f"[rank {rank}] {text}", flush=True)


def _environment() -> Place:
    place = place_of(os.environ)
    for name, value in sorted(os.environ.items()):
        if name in _SHOWN or name.startswith(_SHOWN_PREFIXES):
            _say(place.rank, f"  {name}={value}")
    return place


def _versions(place: Place) -> None:
    import torch

    cuda = f"CUDA {torch.version.cuda}, {torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no GPU"
    nccl = ""
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        nccl = ", NCCL " + ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    _say(place.rank, f"  Python {platform.python_version()}, torch {torch.__version__}, {cuda}{nccl}")


def _join(place: Place) -> tuple[World, str]:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    limit = own_limit(LIMIT_S)
    world = join(place, limit, "ddp")
    enough = torch.cuda.is_available() and dist.is_nccl_available()
    backend = os.environ.get("DDP_BACKEND") or ("nccl" if enough else "gloo")
    _say(place.rank, f"  all {place.world_size} ranks are here, on {', '.join(dict.fromkeys(world.hosts))}; {backend}")
    try:
        dist.init_process_group(
            backend,
            store=PrefixStore("group", world.store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=limit),
        )
    except (RuntimeError, ValueError) as error:
        raise CheckFailed(
            Flaw(
                "comm-error",
                f"init_process_group({backend}) fails on rank {place.rank} ({world.hosts[place.rank]}): "
                f"{_first(error)}",
                "try rankscope check links for the pair that fails; GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME choose "
                "the interface, NCCL_DEBUG=INFO says more",
                rank=place.rank,
                host=world.hosts[place.rank],
            )
        ) from error
    return world, backend


def _device(place: Place, backend: str) -> Any:
    import torch

    if backend != "nccl":
        _say(place.rank, "  cpu")
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if place.local_rank >= count:
        raise CheckFailed(
            Flaw(
                "device-mapping",
                f"local rank {place.local_rank} has no GPU: {count} are visible on this node",
                "start at most one rank a GPU (--nproc-per-node), or widen CUDA_VISIBLE_DEVICES",
                rank=place.rank,
            )
        )
    torch.cuda.set_device(place.local_rank)
    _say(place.rank, f"  cuda:{place.local_rank} {torch.cuda.get_device_name(place.local_rank)}")
    return torch.device("cuda", place.local_rank)


def _collectives(place: Place, backend: str, device: Any) -> list[str]:
    from rankscope.checks.collectives import COLLECTIVES

    standing_in("step 5 (the first sum)", place.rank)
    wrong = _first_sum(place, device)
    if wrong is not None:
        raise CheckFailed(_broken("all_reduce", place, backend, wrong))
    tried = []
    for name, run in COLLECTIVES.items():
        standing_in(f"step 5 ({name})", place.rank)
        try:
            wrong = run(place.rank, place.world_size, device)
        except NotImplementedError:
            _say(place.rank, f"  {name}: not offered by {backend}")
            continue
        except RuntimeError as error:
            if "does not support" in str(error) or "not implemented" in str(error).lower():
                _say(place.rank, f"  {name}: not offered by {backend}")
                continue
            raise CheckFailed(_broken(name, place, backend, _first(error))) from error
        if wrong is not None:
            raise CheckFailed(_broken(name, place, backend, wrong))
        tried.append(name)
        _say(place.rank, f"  {name}: right")
    return tried


def _first_sum(place: Place, device: Any) -> str | None:
    """Every rank's number summed up, with the values before and after for people to see."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([float(place.rank)], device=device)
    _say(place.rank, f"  Before all_reduce: tensor={tensor.item()}")
    dist.all_reduce(tensor)
    expected = place.world_size * (place.world_size - 1) // 2
    right = tensor.item() == expected
    _say(place.rank, f"  After all_reduce: tensor={tensor.item()}, expected={expected}")
    _say(place.rank, f"  All-reduce test {'PASSED' if right else 'FAILED'}")
    return None if right else f"the sum of all ranks' numbers is {tensor.item():g} and should be {expected}"


def _broken(name: str, place: Place, backend: str, seen: str) -> Flaw:
    return Flaw(
        "comm-error",
        f"{name} over {backend} fails on rank {place.rank}: {seen}",
        "rankscope check links names a pair that does not answer; with NCCL compare NCCL_P2P_DISABLE=1",
        rank=place.rank,
    )


def _clean_up(world: World) -> None:
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()
    leave(world)


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


if __name__ == "__main__":
    sys.exit(as_rank(main))
