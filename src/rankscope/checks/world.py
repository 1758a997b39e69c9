"""A roll-call of ranks over torch's store, before any process group: who is missing is known by name.

Everything here runs in processes that may import torch.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rankscope.checks.model import Findings, Flaw

_POLL_S = 0.05
CLOCK_LIMIT_S = 5.0
"""Elastic takes a node whose clock is 15 s behind for dead; a third of that is too near."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place in the world, as its environment says."""

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class World:
    place: Place
    store: Any
    hosts: tuple[str, ...]
    """Rank → host."""


class CheckFailed(Exception):
    """Ends a check with the flaw it found."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(flaw.what)
        self.flaw = flaw


def is_rank(environment: Mapping[str, str]) -> bool:
    """Started by torchrun, srun or by hand as one rank of several."""
    return "RANK" in environment


def place_of(environment: Mapping[str, str]) -> Place:
    """Raises CheckFailed for variables that do not fit together."""
    rank = _number(environment, "RANK", 0)
    world = _number(environment, "WORLD_SIZE", 1)
    local = _number(environment, "LOCAL_RANK", rank)
    port = _number(environment, "MASTER_PORT", 29500)
    if rank >= world:
        raise CheckFailed(
            Flaw(
                "rank-missing",
                f"RANK={rank} does not exist in a world of WORLD_SIZE={world}",
                f"WORLD_SIZE is the number of processes of all nodes: at least {rank + 1} here",
            )
        )
    of_node = environment.get("LOCAL_WORLD_SIZE", "")
    if of_node.isdigit() and int(of_node) > world:
        raise CheckFailed(
            Flaw(
                "rank-missing",
                f"LOCAL_WORLD_SIZE={of_node} is larger than WORLD_SIZE={world}",
                "WORLD_SIZE counts the processes of all nodes, LOCAL_WORLD_SIZE those of one",
            )
        )
    if world > 1 and "MASTER_ADDR" not in environment:
        raise CheckFailed(
            Flaw(
                "address-unreachable",
                f"WORLD_SIZE={world} and no MASTER_ADDR: the ranks cannot find each other",
                "start with rankscope run or torchrun, or set MASTER_ADDR to the host of rank 0 and MASTER_PORT",
            )
        )
    return Place(rank, world, local, environment.get("MASTER_ADDR", "127.0.0.1"), port)


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name)
    if text is None:
        return otherwise
    if not text.strip().isdigit():
        raise CheckFailed(Flaw("rank-missing", f"{name}={text} is no number", f"set {name} to a number, or unset it"))
    return int(text)


def stray_variables(environment: Mapping[str, str]) -> Findings:
    """WORLD_SIZE without RANK: what a shell profile or an old script leaves, and every later job stumbles over."""
    world = environment.get("WORLD_SIZE")
    if world is None or "RANK" in environment or "SLURM_PROCID" in environment:
        return Findings()
    return Findings(
        flaws=(
            Flaw(
                "rank-missing",
                f"WORLD_SIZE={world} is set and RANK is not: a program started from here would wait for "
                f"{world} ranks that nobody starts",
                "unset WORLD_SIZE; rankscope run and torchrun set it for their ranks",
            ),
        )
    )


def join(place: Place, limit_s: float, purpose: str) -> World:
    """Every rank says that it is here. Raises CheckFailed when one does not come within the limit."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore
    from torch.distributed import DistNetworkError, DistStoreError

    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host = place.rank == 0 and not served
    deadline = time.monotonic() + limit_s
    if not host:
        _await_master(place, deadline)
    try:
        tcp = TCPStore(
            place.address,
            place.port,
            None,
            host,
            timedelta(seconds=max(2.0, deadline - time.monotonic())),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (DistNetworkError, DistStoreError, RuntimeError, ValueError) as error:
        raise CheckFailed(_store_flaw(place, host, " ".join(str(error).split()))) from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"rankscope-check/{purpose}/{attempt}", tcp)
    twins = store.add(f"count/{place.rank}", 1)
    if twins > 1:
        raise CheckFailed(
            Flaw(
                "rank-missing",
                f"{twins} processes say RANK={place.rank}",
                "every process needs a RANK of its own, from 0 to WORLD_SIZE - 1",
                rank=place.rank,
            )
        )
    store.set(f"here/{place.rank}", socket.gethostname())
    absent = wait_for(store, [f"here/{rank}" for rank in range(place.world_size)], deadline)
    if absent:
        ranks = [int(key.partition("/")[2]) for key in absent]
        raise CheckFailed(
            Flaw(
                "rank-missing",
                f"WORLD_SIZE={place.world_size}, and {_ranks(ranks)} never came within {limit_s:g} s; "
                f"{place.world_size - len(ranks)} did",
                "start as many processes as WORLD_SIZE says, on every node, with the same MASTER_ADDR and MASTER_PORT",
                rank=ranks[0],
            )
        )
    hosts = tuple(store.get(f"here/{rank}").decode() for rank in range(place.world_size))
    return World(place, store, hosts)


def wait_for(store: Any, keys: list[str], deadline: float) -> list[str]:
    """The keys that are still missing at the deadline, or when the rank that serves the store gives up before us."""
    missing = list(keys)
    while missing:
        try:
            missing = [key for key in missing if not store.check([key])]
        except RuntimeError:  # all errors of torch's stores are
            return missing
        if not missing or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return missing


def leave(world: World, limit_s: float = 10.0) -> None:
    """Rank 0 serves the store: it stays until the others are done with it."""
    world.store.set(f"done/{world.place.rank}", b"1")
    if world.place.rank == 0:
        wait_for(world.store, [f"done/{rank}" for rank in range(world.place.world_size)], time.monotonic() + limit_s)


def clock_flaws(world: World, limit_s: float = 10.0) -> Findings:
    """Rank 0 asks every rank for its time; what cannot come from the way there and back is a clock that is off."""
    place, store = world.place, world.store
    if place.rank != 0:
        store.wait([f"clock/ask/{place.rank}"], timedelta(seconds=limit_s * place.world_size))
        store.set(f"clock/told/{place.rank}", repr(time.time()))
        return Findings()
    flaws, worst = [], 0.0
    for rank in range(1, place.world_size):
        asked = time.time()
        store.set(f"clock/ask/{rank}", b"1")
        if wait_for(store, [f"clock/told/{rank}"], time.monotonic() + limit_s):
            continue  # the next step names a rank that is gone
        answered = time.time()
        told = float(store.get(f"clock/told/{rank}"))
        off = told - answered if told > answered else told - asked if told < asked else 0.0
        worst = max(worst, abs(off))
        if abs(off) > CLOCK_LIMIT_S:
            ahead = "ahead of" if off > 0 else "behind"
            flaws.append(
                Flaw(
                    "rank-missing",
                    f"the clock of {world.hosts[rank]} (rank {rank}) is {abs(off):.1f} s {ahead} that of "
                    f"{world.hosts[0]}: elastic takes a node for dead whose clock is 15 s off, and logs lie",
                    "set the clocks with NTP on every node (timedatectl set-ntp true)",
                    host=world.hosts[rank],
                    rank=rank,
                )
            )
    facts = () if flaws or place.world_size == 1 else (f"clocks agree within {max(worst, 0.1):.1f} s",)
    return Findings(flaws=tuple(flaws), facts=facts)


def _await_master(place: Place, deadline: float) -> None:
    """A connection that is refused may come up; a name that does not resolve will not."""
    last = "no answer"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((place.address, place.port), timeout=2.0):
                return
        except socket.gaierror as error:
            raise CheckFailed(
                Flaw(
                    "address-unreachable",
                    f"MASTER_ADDR={place.address} does not resolve: {error.strerror}",
                    "use the address of the host of rank 0, or a name that every node knows (getent hosts NAME)",
                )
            ) from error
        except OSError as error:
            last = error.strerror or str(error)
            time.sleep(0.1)
    raise CheckFailed(
        Flaw(
            "address-unreachable",
            f"rank 0 at {place.address}:{place.port} does not answer rank {place.rank} on "
            f"{socket.gethostname()}: {last}",
            "is rank 0 started, is MASTER_ADDR its address, does a firewall close the port?",
            rank=place.rank,
            host=socket.gethostname(),
        )
    )


def _store_flaw(place: Place, host: bool, message: str) -> Flaw:
    low = message.lower()
    if host and ("address already in use" in low or "eaddrinuse" in low):
        return Flaw(
            "port-in-use",
            f"port {place.port} is taken: rank 0 cannot serve the others there",
            "set MASTER_PORT to a free port, or end who holds it (ss -ltnp shows who)",
        )
    return Flaw(
        "address-unreachable",
        f"the store at {place.address}:{place.port} cannot be used: {message[:200]}",
        "check MASTER_ADDR and MASTER_PORT",
    )


def _ranks(ranks: list[int]) -> str:
    from rankscope.report.words.phrases import ranks_text

    return ranks_text(ranks)
