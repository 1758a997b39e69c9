"""`check links`: latency and bandwidth of every pair of ranks; the slow or silent pair is named.

Each pair talks over a process group of its own, so that one silent pair says nothing about the others.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from rankscope.addresses import own_address
from rankscope.checks.model import Findings, Flaw
from rankscope.checks.team import as_rank, own_limit, run_team, standing_in
from rankscope.checks.world import World, join, leave, place_of, wait_for
from rankscope.door import Door, knock

LIMIT_S = 30.0
PAIR_LIMIT_S = 8.0
SLOW_FACTOR = 4.0
"""A pair this many times slower than the median pair is a slow one."""
_PINGS = 20
_BYTES = 4 << 20
_REPEATS = 4


class Link(msgspec.Struct, frozen=True):
    low: int
    high: int
    latency_us: float | None
    """None: the pair is silent."""
    mb_per_s: float | None
    why: str = ""
    tried: bool = True
    """False: one of the two never came to it, kept by another pair or gone."""


def check_links(
    ranks: int, environment: Mapping[str, str], limit_s: float = LIMIT_S, most_s: float | None = None
) -> Findings:
    return run_team("rankscope.checks.links", ranks, limit_s, environment, most_s)


def rounds(world: int) -> list[list[tuple[int, int]]]:
    """Every pair once, in rounds in which every rank has at most one partner."""
    seats: list[int | None] = list(range(world)) + ([None] if world % 2 else [])
    plan = []
    for _ in range(len(seats) - 1):
        pairs = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        plan.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return plan


def judge(links: list[Link], hosts: tuple[str, ...]) -> Findings:
    """Which pairs are silent, and which much slower than the others."""
    flaws = []
    spoken = [link for link in links if link.latency_us is not None and link.mb_per_s is not None]
    mute = {rank for link in links if link.tried and link.latency_us is None for rank in (link.low, link.high)}
    for link in links:
        if not link.tried and mute & {link.low, link.high}:
            continue  # the silent pair kept one of these two busy: that says nothing about this one
        if link.latency_us is None:
            flaws.append(
                Flaw(
                    "comm-error",
                    f"{_pair(link, hosts)} do not reach each other: {link.why}",
                    "look at the firewall and the routes between these two; NCCL_SOCKET_IFNAME and "
                    "GLOO_SOCKET_IFNAME choose the interface",
                    host=hosts[link.high],
                    rank=link.high,
                )
            )
    median = statistics.median([link.mb_per_s or 0.0 for link in spoken]) if spoken else 0.0
    typical = statistics.median([link.latency_us or 0.0 for link in spoken]) if spoken else 0.0
    for link in spoken:
        assert link.mb_per_s is not None
        assert link.latency_us is not None
        if len(spoken) < 3:
            continue  # nothing to compare with
        thin = link.mb_per_s * SLOW_FACTOR < median
        late = link.latency_us > max(10 * typical, 2000.0)
        if thin or late:
            flaws.append(
                Flaw(
                    "slow-rank",
                    f"{_pair(link, hosts)} are slow: {link.mb_per_s:.0f} MB/s and {link.latency_us:.0f} µs, "
                    f"where the median pair has {median:.0f} MB/s and {typical:.0f} µs",
                    "look at the cable, the switch port and the NUMA placement of these two",
                    host=hosts[link.high],
                    rank=link.high,
                )
            )
    facts = (
        (f"{len(spoken)} {'pair' if len(spoken) == 1 else 'pairs'}, median {median:.0f} MB/s and {typical:.0f} µs",)
        if spoken
        else ()
    )
    return Findings(flaws=tuple(flaws), facts=facts)


def _pair(link: Link, hosts: tuple[str, ...]) -> str:
    return f"rank {link.low} ({hosts[link.low]}) and rank {link.high} ({hosts[link.high]})"


def main() -> Findings:
    """One rank's part."""
    place = place_of(os.environ)
    limit = own_limit(LIMIT_S)
    world = join(place, limit, "links")
    deadline = time.monotonic() + limit
    door = Door(own_address(place.address, place.port))
    world.store.set(f"door/{place.rank}", f"{door.address} {door.port}")
    for number, pairs in enumerate(rounds(place.world_size)):
        for low, high in pairs:
            if place.rank in (low, high):
                standing_in(f"the link between ranks {low} and {high}", place.rank)
                link = _measure(world, low, high, f"round/{number}", deadline)
                if place.rank == low:
                    world.store.set(f"link/{low}-{high}", msgspec.json.encode(link))
    every = [pair for pairs in rounds(place.world_size) for pair in pairs]
    keys = [f"link/{low}-{high}" for low, high in every]
    wait_for(world.store, keys, deadline + PAIR_LIMIT_S)
    links = [
        msgspec.json.decode(world.store.get(key), type=Link)
        if world.store.check([key])
        else Link(low, high, None, None, "one of them never came to it", tried=False)
        for key, (low, high) in zip(keys, every, strict=True)
    ]
    found = judge(links, world.hosts)
    leave(world)
    door.close()
    return found


def _measure(world: World, low: int, high: int, key: str, deadline: float) -> Link:
    """Both ends call it; the lower rank's answer counts."""
    rank, other = world.place.rank, high if world.place.rank == low else low
    world.store.set(f"{key}/ready/{rank}", b"1")
    if wait_for(world.store, [f"{key}/ready/{other}"], deadline):
        return Link(low, high, None, None, f"rank {other} never came to it", tried=False)
    silent = _first_contact(world, other, key, deadline)
    if silent is not None:
        return Link(low, high, None, None, silent)
    try:
        group, device = _two(world, f"{key}/{low}-{high}", rank == high)
        _ping(group, device, rank == low, 2)
        begun = time.perf_counter()
        _ping(group, device, rank == low, _PINGS)
        latency = (time.perf_counter() - begun) / _PINGS / 2
        begun = time.perf_counter()
        for _ in range(_REPEATS):
            _ping(group, device, rank == low, 1, _BYTES // 4)
        speed = 2 * _REPEATS * _BYTES / (time.perf_counter() - begun)
    except (RuntimeError, TimeoutError) as error:
        return Link(low, high, None, None, (str(error).splitlines() or ["no answer"])[0][:160])
    return Link(low, high, latency * 1e6, speed / 1e6)


def _first_contact(world: World, other: int, key: str, deadline: float) -> str | None:
    """Plain TCP in both directions: a pair that is cut shows in seconds, not after a process group has tried."""
    address, port = world.store.get(f"door/{other}").decode().split()
    rank = world.place.rank
    world.store.set(f"{key}/knock/{rank}", knock(address, int(port)))
    if wait_for(world.store, [f"{key}/knock/{other}"], deadline):
        return f"rank {other} was lost while it was tried"
    for one, to in ((rank, other), (other, rank)):
        answer = world.store.get(f"{key}/knock/{one}").decode()
        if answer != "alive":
            return f"TCP from rank {one} to rank {to} is {'refused' if answer == 'gone' else 'not answered'}"
    return None


def _two(world: World, name: str, second: bool) -> tuple[Any, Any]:
    """A process group of two, NCCL where every rank has a GPU of its own."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    store = PrefixStore(name, world.store)
    limit = timedelta(seconds=PAIR_LIMIT_S)
    if torch.cuda.is_available() and world.place.local_rank < torch.cuda.device_count() and dist.is_nccl_available():
        device = torch.device("cuda", world.place.local_rank)
        torch.cuda.set_device(device)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        return dist.ProcessGroupNCCL(store, int(second), 2, options), device
    return dist.ProcessGroupGloo(store, int(second), 2, limit), torch.device("cpu")


def _ping(group: Any, device: Any, first: bool, times: int, numel: int = 1) -> None:
    import torch

    tensor = torch.ones(numel, device=device)
    peer = 1 if first else 0
    for _ in range(times):
        for sends in (first, not first):
            work = group.send([tensor], peer, 0) if sends else group.recv([tensor], peer, 0)
            _finish(work, device)


def _finish(work: Any, device: Any) -> None:
    """NCCL's wait never ends with a silent peer: it is asked instead."""
    import torch

    if device.type == "cpu":
        work.wait(timedelta(seconds=PAIR_LIMIT_S))
        return
    deadline = time.monotonic() + PAIR_LIMIT_S
    while not work.is_completed():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer within {PAIR_LIMIT_S:g} s")
    torch.cuda.synchronize(device)


if __name__ == "__main__":
    code = as_rank(main)
    sys.stdout.flush()
    # A communicator with a silent peer cannot be closed in order.
    os._exit(code)
