"""Every collective once, with values that show which rank's data went where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Tried = Callable[[int, int, Any], "str | None"]
"""(rank, world size, device) → what is wrong, or None."""


def _all_reduce(rank: int, world: int, device: Any) -> str | None:
    import torch
    import torch.distributed as dist

    tensor = torch.full((1000,), float(rank + 1), device=device)
    dist.all_reduce(tensor)
    return _differs(tensor, [world * (world + 1) / 2] * 1000)


def _broadcast(rank: int, world: int, device: Any) -> str | None:
    import torch
    import torch.distributed as dist

    for root in range(world):
        tensor = torch.full((7,), float(rank), device=device)
        dist.broadcast(tensor, root)
        wrong = _differs(tensor, [float(root)] * 7)
        if wrong is not None:
            return f"from rank {root}: {wrong}"
    return None


def _reduce(rank: int, world: int, device: Any) -> str | None:
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([float(rank), 1.0], device=device)
    dist.reduce(tensor, world - 1)
    return _differs(tensor, [world * (world - 1) / 2, float(world)]) if rank == world - 1 else None


def _all_gather(rank: int, world: int, device: Any) -> str | None:
    import torch
    import torch.distributed as dist

    parts = [torch.zeros(2, device=device) for _ in range(world)]
    dist.all_gather(parts, torch.tensor([float(rank), float(rank * rank)], device=device))
    return _differs(torch.cat(parts), [value for peer in range(world) for value in (peer, peer * peer)])


def _gather(rank: int, world: int, device: Any) -> str | None:
    import torch
    import torch.distributed as dist

    parts = [torch.zeros(1, device=device) for _ in range(world)] if rank == 0 else None
    dist.gather(torch.tensor([10.0 + rank], device=device), parts, dst=0)
    return None if parts is None else _differs(torch.cat(parts), [10.0 + peer for peer in range(world)])


def _scatter(rank: int, world: int, device: Any) -> str | None:
    import torch
    import torch.distributed as dist

    parts = [torch.tensor([5.0 * peer], device=device) for peer in range(world)] if rank == 0 else None
    tensor = torch.zeros(1, device=device)
    dist.scatter(tensor, parts, src=0)
    return _differs(tensor, [5.0 * rank])


def _reduce_scatter(rank: int, world: int, device: Any) -> str | None:
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(1, device=device)
    dist.reduce_scatter_tensor(tensor, torch.arange(world, device=device, dtype=torch.float32) + rank)
    return _differs(tensor, [world * rank + world * (world - 1) / 2])


def _all_to_all(rank: int, world: int, device: Any) -> str | None:
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(world, device=device)
    dist.all_to_all_single(tensor, torch.arange(world, device=device, dtype=torch.float32) + 100.0 * rank)
    return _differs(tensor, [100.0 * peer + rank for peer in range(world)])


def _ring(rank: int, world: int, device: Any) -> str | None:
    import torch
    import torch.distributed as dist

    if world == 1:
        return None
    left, right = (rank - 1) % world, (rank + 1) % world
    tensor, own = torch.zeros(3, device=device), torch.full((3,), float(rank), device=device)
    work = dist.batch_isend_irecv([dist.P2POp(dist.isend, own, right), dist.P2POp(dist.irecv, tensor, left)])
    for item in work:
        item.wait()
    return _differs(tensor, [float(left)] * 3)


def _objects(rank: int, world: int, device: Any) -> str | None:  # noqa: ARG001  all have the same form
    import torch.distributed as dist

    found: list[Any] = [None] * world
    dist.all_gather_object(found, {"rank": rank})
    expected = [{"rank": peer} for peer in range(world)]
    return None if found == expected else f"{found} instead of {expected}"


COLLECTIVES: dict[str, Tried] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send and receive": _ring,
    "all_gather_object": _objects,
}


def _differs(tensor: Any, expected: list[float]) -> str | None:
    found = tensor.flatten().tolist()
    if all(abs(a - b) < 1e-3 for a, b in zip(found, expected, strict=True)):
        return None
    place = next(index for index, (a, b) in enumerate(zip(found, expected, strict=True)) if not abs(a - b) < 1e-3)
    return f"element {place} is {found[place]:g} and should be {expected[place]:g}"
