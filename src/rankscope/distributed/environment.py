"""The variables that tell a process its place in the job, read and checked before anything depends on them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rankscope.distributed.failures import BadEnvironment

Wish = Literal["auto", "nccl", "gloo"]
TIMEOUTS = ("NCCL_TIMEOUT", "NCCL_TIMEOUT_SECONDS")
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands in its job."""

    rank: int
    local_rank: int
    world_size: int
    address: str
    port: int
    backend: Wish
    """From DDP_BACKEND; `auto` where it is not set."""
    launched: bool
    """By torchrun, rankscope run or the like; a single process of its own otherwise."""
    store_is_served: bool
    """The launcher serves the store on the port already."""


def read_place(variables: Mapping[str, str], *, check_network: bool = True) -> Place:
    """Raises BadEnvironment with one line that says which variable is wrong, and what to write instead."""
    backend = wanted_backend(variables)
    given = [name for name in LAUNCHED if variables.get(name)]
    if not given:
        return Place(0, _local_rank(variables), 1, "", 0, backend, launched=False, store_is_served=False)
    for name in LAUNCHED:
        if name not in given:
            raise BadEnvironment(
                f"{name} is not set, though {', '.join(given)} {'is' if len(given) == 1 else 'are'}: "
                "start the program with 'rankscope run' or torchrun, or set all four"
            )
    rank, world = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
    if world < 1:
        raise BadEnvironment(f"WORLD_SIZE={world}: a job has at least 1 rank")
    if rank >= world:
        raise BadEnvironment(f"RANK={rank} and WORLD_SIZE={world}: ranks count from 0, so RANK must be below {world}")
    port = _number(variables, "MASTER_PORT")
    if not 0 < port < 65536:
        raise BadEnvironment(f"MASTER_PORT={port}: a port lies between 1 and 65535, and 29500 is usual")
    place = Place(
        rank=rank,
        local_rank=_local_rank(variables),
        world_size=world,
        address=variables["MASTER_ADDR"],
        port=port,
        backend=backend,
        launched=True,
        store_is_served=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )
    if check_network:
        _check_network(place)
    return place


def read_timeout(variables: Mapping[str, str], otherwise: float = 600.0) -> float:
    """NCCL_TIMEOUT or NCCL_TIMEOUT_SECONDS: NCCL itself knows neither, but people set them. Raises BadEnvironment."""
    for name in TIMEOUTS:
        if variables.get(name):
            seconds = _number(variables, name)
            if seconds < 1:
                raise BadEnvironment(f"{name}={seconds}: give a number of seconds, as in {name}=3600")
            return float(seconds)
    return otherwise


def _number(variables: Mapping[str, str], name: str) -> int:
    text = variables[name].strip()
    try:
        number = int(text)
    except ValueError:
        raise BadEnvironment(f"{name}={text!r} is not a number: write it in digits, as in {name}=0") from None
    if number < 0:
        raise BadEnvironment(f"{name}={number} is negative: ranks, sizes and ports count from 0")
    return number


def _local_rank(variables: Mapping[str, str]) -> int:
    if not variables.get("LOCAL_RANK"):
        return 0
    local = _number(variables, "LOCAL_RANK")
    if variables.get("LOCAL_WORLD_SIZE"):
        size = _number(variables, "LOCAL_WORLD_SIZE")
        if local >= size:
            raise BadEnvironment(
                f"LOCAL_RANK={local} and LOCAL_WORLD_SIZE={size}: LOCAL_RANK must be below the ranks of this machine"
            )
    return local


def wanted_backend(variables: Mapping[str, str]) -> Wish:
    """DDP_BACKEND; raises BadEnvironment where it names none that there is."""
    text = variables.get("DDP_BACKEND", "").strip().lower()
    if text in ("", "auto"):
        return "auto"
    if text == "nccl":
        return "nccl"
    if text == "gloo":
        return "gloo"
    raise BadEnvironment(f"DDP_BACKEND={text!r} is no backend of this set-up: write nccl, gloo or auto")


def _check_network(place: Place) -> None:
    try:
        found = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadEnvironment(
            f"MASTER_ADDR={place.address!r} does not resolve ({error.strerror or error}): "
            "write the address or the name of rank 0's machine, or localhost on a single one"
        ) from None
    if place.rank != 0 or place.store_is_served:
        return
    family, kind, protocol, _, _ = found[0]
    with socket.socket(family, kind, protocol) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", place.port))
        except OSError as error:
            raise BadEnvironment(
                f"MASTER_PORT={place.port} cannot be listened on ({error.strerror}): another process holds it; "
                "see 'ss -ltnp', or choose another port"
            ) from None
